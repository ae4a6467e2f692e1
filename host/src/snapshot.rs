//! Conversations in files.

use crate::chat::Chat;
use crate::error::{Error, FileError, Result};
use crate::file::ModelFile;
use crate::lora;
use crate::model::Model;
use sha2::{Digest, Sha256};
use shohin_core::KvFormat;
use shohin_core::cache::{KvShape, blocks_to_rows, rows_to_blocks};
use shohin_core::chat::PrefixState;
use shohin_core::chat::snapshot::{self, Extent, Fingerprint, Layout, Origin, Snapshot};
use shohin_files::failed;
use shohin_files::new_file::NewFile;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Hash of samples of a model's bytes.
fn hash_of(file: &ModelFile) -> Sha256 {
    let (mut samples, mut hash) = (Fingerprint::default(), Sha256::new());
    for part in file.bytes() {
        samples.push(part, &mut |bytes| hash.update(bytes));
    }
    hash.update(samples.finish());
    hash
}

#[cfg(any(feature = "mpi", feature = "convert"))]
impl ModelFile {
    /// A hash of samples of its bytes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        hash_of(self).finalize().into()
    }
}

/// Orders keys and values as another kind of device does.
type Relayout = fn(KvFormat, KvShape, &[u8]) -> shohin_core::Result<Vec<u8>>;

impl Model {
    /// The model and the settings under which keys and values are valid.
    fn origin(&self) -> Origin {
        let (fingerprint, layout) = (self.fingerprint(), self.0.device.layout());
        Origin::new(fingerprint, layout, &self.session_options(self.context()), self.activations())
    }

    fn fingerprint(&self) -> [u8; 32] {
        *self.0.fingerprint.get_or_init(|| {
            let mut hash = hash_of(self.file());
            // Frequencies that depend on the context.
            if let Some(context) = self.config().positions.frequencies().scaling.context() {
                hash.update(context.to_le_bytes());
            }
            hash.update(&self.0.readings);
            lora::hash(&self.0.adapters, &mut hash);
            hash.finalize().into()
        })
    }

    /// Reads a snapshot, and what its keys and values are on this device if another kind of device ordered them.
    fn read<'b>(&self, bytes: &'b [u8]) -> shohin_core::Result<(Snapshot<'b>, Option<Vec<u8>>)> {
        let origin = self.origin();
        let foreign = match snapshot::open(bytes, &origin, sha256) {
            Err(foreign @ shohin_core::Error::SnapshotForeign { .. }) => foreign,
            found => return Ok((found?, None)),
        };
        let (other, convert): (_, Relayout) = match self.0.device.layout() {
            Layout::Cpu => (Layout::Gpu, rows_to_blocks),
            Layout::Gpu => (Layout::Cpu, blocks_to_rows),
        };
        let found = snapshot::open(bytes, &origin.on(other), sha256).map_err(|_| foreign)?;
        let c = self.config();
        let shape = KvShape {
            layers: c.program().layers,
            kv_heads: c.num_kv_heads,
            capacity: found.prefix.held(),
            head_dim: c.head_dim,
        };
        let kv = convert(self.kv(), shape, found.kv)?;
        Ok((found, Some(kv)))
    }
}

impl Chat {
    /// The conversation as bytes: its messages, and the keys and values of its tokens. They go on in any chat over the
    /// same model, with the same [`Builder::kv`](crate::Builder::kv) and [`Builder::attention`](crate::Builder::attention), on a CPU or a GPU.
    ///
    /// # Errors
    /// If there is no memory; what a GPU says.
    pub fn snapshot(&mut self) -> Result<Vec<u8>> {
        let (model, conversation, sequence) = self.parts();
        let sequence = sequence.settled()?;
        let len = sequence.export_len();
        let mut bytes = snapshot::begin(&model.origin(), conversation.history(), conversation.prefix(), len)?;
        sequence.export(&mut bytes)?;
        Ok(snapshot::seal(bytes, sha256))
    }

    /// Goes on with the conversation of a [`Chat::snapshot`]; the one so far is lost. Nothing is computed again.
    ///
    /// # Errors
    /// [`SnapshotDamaged`](shohin_core::Error::SnapshotDamaged),
    /// [`SnapshotForeign`](shohin_core::Error::SnapshotForeign) if another model or other settings made it; the
    /// conversation stays as it is then. [`ContextFull`](shohin_core::Error::ContextFull) if it does not fit: the
    /// conversation is computed again with the next message then.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let (model, conversation, sequence) = self.parts();
        let (found, converted) = model.read(bytes)?;
        let kv = converted.as_deref().unwrap_or(found.kv);
        conversation.set_prefix(PrefixState::default())?;
        sequence.truncate(0)?;
        sequence.import(&found.prefix.held_tokens(), kv)?;
        conversation.restore(found.history, found.prefix)?;
        Ok(())
    }

    /// Writes [`Chat::snapshot`] to a file. One that is there is replaced when all is written, and keeps its permissions; only
    /// the user may read a new one.
    ///
    /// # Errors
    /// As [`Chat::snapshot`], and [`FileError::Io`].
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = self.snapshot()?;
        let failed = failed("write", path);
        let mut file = NewFile::private(path).map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        Ok(file.finish().map_err(failed)?)
    }

    /// Goes on with the conversation of a file written by [`Chat::save`], by `shohin chat --session`, or with the state
    /// that the npm package's `snapshot()` gives.
    ///
    /// # Errors
    /// As [`Chat::restore`], with the name of the file, and [`FileError::Io`].
    pub fn open(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = failed("read", path);
        let named = |source| Error::from(FileError::Model { name: path.display().to_string(), source });
        let file = File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        // Another file may be larger than memory.
        (&file).take(snapshot::HEAD_LEN as u64).read_to_end(&mut bytes).map_err(failed)?;
        let (model, _, sequence) = self.parts();
        let per_token = model.capabilities().kv_bytes_per_token;
        let state = model.config().program().state_len as u64 * size_of::<f32>() as u64;
        let Extent { held, most } =
            snapshot::extent(&bytes, &model.origin(), per_token, state).map_err(named)?;
        let capacity = sequence.capacity();
        if held > capacity {
            let (adding, capacity) = (held as u64, capacity as u64);
            return Err(named(shohin_core::Error::ContextFull { position: 0, adding, capacity }));
        }
        (&file).take(most - bytes.len() as u64).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 >= most {
            return Err(named(shohin_core::Error::SnapshotDamaged));
        }
        self.restore(&bytes).map_err(|error| match error {
            Error::Engine(source) => named(source),
            other => other,
        })
    }
}
