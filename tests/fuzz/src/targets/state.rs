//! What Shohin itself keeps on disk: conversations and repacked weights. Their checksums are made right again after most
//! mutations, as whoever forges such a file would do.

use super::file::{model_seeds, small_model};
use super::folder::scratch;
use sha2::{Digest, Sha256};
use shohin::{Chat, ChatMessage, Model, ModelFile, WeightCache};
use shohin_core::chat::Role;
use shohin_tests::reading;
use std::cell::{OnceCell, RefCell};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// The body of a snapshot with its checksum.
fn seal(body: &[u8]) -> Vec<u8> {
    shohin_core::chat::snapshot::seal(body.to_vec(), |bytes| Sha256::digest(bytes).into())
}

fn model() -> Model {
    let file = ModelFile::from_bytes("tiny", &small_model()).expect("bytes");
    Model::builder().threads(1).context(48).load_file(&file).expect("a valid model")
}

fn new_chat() -> Chat {
    let mut chat = model().chat().expect("memory");
    chat.options_mut().max_tokens = Some(2);
    chat.options_mut().sampler.temperature = 0.0;
    chat
}

pub(super) fn snapshot_seeds() -> Vec<Vec<u8>> {
    let mut chat = new_chat();
    let empty = chat.snapshot().expect("memory");
    chat.send("ab").and_then(|reply| reply.finish()).expect("a reply");
    vec![empty, chat.snapshot().expect("memory")]
}

pub(super) fn snapshot(input: &[u8]) {
    thread_local!(static CHAT: RefCell<Option<Chat>> = const { RefCell::new(None) });
    CHAT.with_borrow_mut(|chat| {
        let chat = chat.get_or_insert_with(new_chat);
        let body = &input[..input.len().saturating_sub(32)];
        let sealed = if reading::fnv(input).is_multiple_of(8) { input.to_vec() } else { seal(body) };
        let before = chat.messages().to_vec();
        match chat.restore(&sealed) {
            Ok(()) => {
                // It goes on, or says why not; in any case it can be saved again.
                let _ = chat.send("a").and_then(|reply| reply.finish());
                let again = chat.snapshot().expect("memory");
                chat.restore(&again).expect("what was saved can be restored");
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(chat.messages(), before, "after an error it is as it was");
            }
        }
        chat.set_messages(vec![ChatMessage::new(Role::User, "b")]);
    });
}

/// A model on disk, the path of its repacked weights, and the logits of a token.
struct Kept {
    folder: TempDir,
    cache: PathBuf,
    logits: Vec<f32>,
}

impl Kept {
    fn new() -> Kept {
        let folder = scratch();
        // In a format that is repacked.
        fs::write(folder.path().join("model.gguf"), &model_seeds()[2]).expect("room for it");
        let mut kept = Kept { folder, cache: PathBuf::new(), logits: Vec::new() };
        let model = kept.load();
        kept.logits = logits(&model);
        model.finish_caching().expect("room for it");
        let files = fs::read_dir(kept.folder.path().join("cache")).expect("it was written");
        kept.cache = files.flatten().map(|file| file.path()).next().expect("it was written");
        kept
    }

    fn load(&self) -> Model {
        let cache = WeightCache::in_dir(self.folder.path().join("cache")).smallest(0);
        let builder = Model::builder().threads(1).context(8).weight_cache(cache);
        builder.load(self.folder.path().join("model.gguf")).expect("the model itself is valid")
    }
}

fn logits(model: &Model) -> Vec<f32> {
    let mut all = Vec::new();
    model.logits(&[1, 2], &mut |_, row| all.extend_from_slice(row)).expect("valid tokens");
    all
}

thread_local!(static KEPT: OnceCell<Kept> = const { OnceCell::new() });

pub(super) fn weight_cache_seeds() -> Vec<Vec<u8>> {
    KEPT.with(|kept| {
        let kept = kept.get_or_init(Kept::new);
        vec![fs::read(&kept.cache).expect("it was written")]
    })
}

/// Makes the key that of the model, and the checksum of the header right.
fn forge(input: &mut [u8], real: &[u8]) {
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
    };
    let Some(key) = word(real, 16) else { return };
    if input.len() > 20 + key {
        input[..8].copy_from_slice(&real[..8]);
        input[16..20 + key].copy_from_slice(&real[16..20 + key]);
    }
    let Some(len) = word(input, 12) else { return };
    if let Some(rest) = 16usize.checked_add(len).and_then(|end| input.get(16..end)) {
        let sum = crc32(rest).to_le_bytes();
        input[8..12].copy_from_slice(&sum);
    }
}

/// The CRC-32 of ISO 3309, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, step)
}

pub(super) fn weight_cache(input: &[u8]) {
    KEPT.with(|kept| {
        let kept = kept.get_or_init(Kept::new);
        let mut file = input.to_vec();
        if !reading::fnv(input).is_multiple_of(4)
            && let Ok(real) = fs::read(&kept.cache)
        {
            forge(&mut file, &real);
        }
        // A new file: the old one may still be mapped.
        let _ = fs::remove_file(&kept.cache);
        fs::write(&kept.cache, &file).expect("room for it");
        let model = kept.load();
        let found = logits(&model);
        // Weights of the cache have a valid checksum; they are the model's unless they were forged with it.
        if !model.is_cached() {
            assert_eq!(found, kept.logits, "repacked again");
        }
        model.finish_caching().expect("room for it");
    });
}
