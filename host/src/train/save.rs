//! The model that comes out, as a GGUF file.

use super::{Method, Training};
use crate::convert::ConvertOptions;
use crate::error::Result;
use shohin_core::Format;
use shohin_core::gguf::{Gguf, GgufWriter, TensorInfo, Value};
use shohin_core::model::program::{TensorId, TensorRole};
use shohin_files::failed;
use shohin_files::new_file::NewFile;
use shohin_train::quantize::{self, Fake};
use std::io::Write;
use std::path::Path;

/// Keys that say how the old weights were packed.
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";

impl Training<'_> {
    /// Writes the model as it is now to the GGUF file `path`: metadata and what is not trained as in the base, floats as F32,
    /// ternary weights as PQ2_0 and 1-bit weights as Q1_0; of an adapter, its factors as F32. A file that is there is replaced only if `replace` says so.
    ///
    /// # Errors
    /// [`Error::Convert`](crate::Error::Convert) if the file is there; [`Error::File`](crate::Error::File).
    pub fn save(&self, path: impl AsRef<Path>, replace: bool) -> Result<()> {
        let path = path.as_ref();
        if self.options.method == Method::Lora {
            return self.save_adapter(path, replace);
        }
        let file = crate::convert::new_file(path, replace)?;
        self.write(file, path)
    }

    /// Writes the model as it is now to the folder `path`, as Hugging Face's libraries read it, with weights in F32; an adapter as
    /// PEFT does. Files that are there are replaced only if `replace` says so.
    ///
    /// # Errors
    /// As [`convert_to_folder`](crate::convert::convert_to_folder).
    pub fn save_folder(&self, path: impl AsRef<Path>, replace: bool) -> Result<()> {
        let path = path.as_ref();
        if self.options.method == Method::Lora {
            return self.save_adapter_folder(path, replace);
        }
        let failed = failed("write", path);
        let beside = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let temporary = tempfile::tempdir_in(beside.unwrap_or(Path::new("."))).map_err(failed)?;
        let name = path.file_name().unwrap_or_default();
        let whole = temporary.path().join(name).with_extension("gguf");
        self.save(&whole, false)?;
        let options = ConvertOptions::new().replace(replace);
        crate::convert::convert_to_folder(&whole, path, &options, |_, _| ())?;
        Ok(())
    }

    fn write(&self, mut file: NewFile, path: &Path) -> Result<()> {
        let failed = failed("write", path);
        let gguf = self.base.model.gguf()?;
        let writer = self.header(&gguf)?;
        file.write_all(&writer.header()?).map_err(failed)?;
        let mut body = writer.body();
        let mut bytes = Vec::new();
        for tensor in gguf.tensors() {
            self.bytes_of(&gguf, tensor, &mut bytes)?;
            body.push(&bytes, |bytes| Ok::<_, crate::Error>(file.write_all(bytes).map_err(failed)?))?;
        }
        body.finish()?;
        Ok(file.finish().map_err(failed)?)
    }

    fn header(&self, gguf: &Gguf<'_>) -> Result<GgufWriter> {
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            // A type-42 layout may be written there.
            if key != FILE_TYPE && key != VERSION {
                writer.set(key, value)?;
            }
        }
        // As `shohin quantize` numbers them: mostly F32, PQ2_0, Q1_0.
        let file_type = match self.options.weights.fake() {
            None => 0u32,
            Some(Fake::Ternary) => 141,
            Some(Fake::OneBit) => 40,
        };
        if self.options.method == Method::Full {
            writer.set(FILE_TYPE, Value::U32(file_type))?;
            writer.set(VERSION, Value::U32(2))?;
        } else {
            for key in [FILE_TYPE, VERSION] {
                if let Some(value) = gguf.metadata().get(key) {
                    writer.set(key, value)?;
                }
            }
        }
        for tensor in gguf.tensors() {
            match self.trained(tensor.name()) {
                Some((_, format)) => writer.tensor(tensor.name(), tensor.dims(), format)?,
                None => {
                    // The model was loaded: its formats are known.
                    let format = tensor.format().unwrap_or(Format::F32);
                    writer.tensor(tensor.name(), tensor.dims(), format)?;
                }
            }
        }
        Ok(writer)
    }

    /// The tensor called `name` if it is trained, and the format it is written in.
    fn trained(&self, name: &str) -> Option<(TensorId, Format)> {
        let program = self.base.program();
        let id = program.tensor_ids().find(|id| program.tensor(*id).name == name)?;
        self.trainer.master(id)?;
        let format = match (program.tensor(id).role, self.options.weights.fake()) {
            (TensorRole::Vector, _) | (_, None) => Format::F32,
            (TensorRole::Matrix, Some(fake)) => fake.format(),
        };
        Some((id, format))
    }

    fn bytes_of(&self, gguf: &Gguf<'_>, tensor: &TensorInfo<'_>, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        let Some((id, format)) = self.trained(tensor.name()) else {
            bytes.extend_from_slice(gguf.data(tensor));
            return Ok(());
        };
        let master = self.trainer.master(id).unwrap_or(&[]);
        match self.options.weights.fake().filter(|_| format != Format::F32) {
            None => master.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes())),
            Some(fake) => {
                bytes.resize(master.len() / format.block() * format.block_bytes(), 0);
                quantize::pack(self.base.model.isa(), fake, master, bytes)?;
            }
        }
        Ok(())
    }
}
