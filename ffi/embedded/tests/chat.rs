//! Conversations by the C interface, with the allocator of the desktop.

#[allow(unreachable_pub, reason = "of a crate that cannot be used here: it has an allocator, too")]
#[path = "../../../tests/src/long_rope.rs"]
mod long_rope;

use long_rope::long_rope;
use shohin_embedded::calls::*;
use shohin_embedded::code::shohin_code::{SHOHIN_DONE, SHOHIN_OK};
use shohin_embedded::code::{shohin_code, shohin_error};
use shohin_embedded::info::{shohin_chat, shohin_model, shohin_usage};
use shohin_embedded::memory::shohin_use_memory;
use shohin_embedded::options::{shohin_chat_options, shohin_load_options};
use shohin_embedded::piece::shohin_piece;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of a thread.
struct Counting;

// SAFETY: the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Calls must not overlap.
static ALONE: Mutex<()> = Mutex::new(());

struct Chat {
    model: *mut shohin_model,
    chat: *mut shohin_chat,
    _alone: MutexGuard<'static, ()>,
}

impl Chat {
    /// With a context of 256 tokens: messages of up to 512 bytes.
    fn new(file: Vec<u8>) -> Chat {
        static MEMORY: Mutex<[u64; 128]> = Mutex::new([0; 128]);
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let file: &'static [u8] = file.leak();
        let (mut model, mut chat) = (null_mut(), null_mut());
        let load = shohin_load_options { context: 256, ..shohin_load_options::default() };
        let options =
            shohin_chat_options { temperature: 0.0, max_tokens: 64, ..shohin_chat_options::default() };
        // SAFETY: variables, and bytes that stay. The first call gives the memory, which nothing else uses.
        unsafe {
            let memory = MEMORY.lock().unwrap().as_mut_ptr();
            shohin_use_memory(memory.cast(), 1024, null_mut());
            let code = shohin_model_load_in_place(file.as_ptr(), file.len(), &load, &mut model, null_mut());
            assert_eq!(code, SHOHIN_OK);
            assert_eq!(shohin_chat_new(model, &options, &mut chat, null_mut()), SHOHIN_OK);
        }
        Chat { model, chat, _alone: alone }
    }

    /// Sends a message; the number of tokens of the conversation with it, and those that were computed before.
    fn send(&self, text: &str) -> (usize, usize) {
        // SAFETY: all zeros are valid.
        let mut error: shohin_error = unsafe { std::mem::zeroed() };
        // SAFETY: a chat and variables.
        let code = unsafe { shohin_chat_send(self.chat, text.as_ptr().cast(), text.len(), &mut error) };
        assert_eq!(code, SHOHIN_OK, "{error:?}");
        let usage = self.usage();
        (usage.prompt_tokens, usage.cached_tokens)
    }

    fn usage(&self) -> shohin_usage {
        let mut usage = shohin_usage::default();
        // SAFETY: a chat and a variable.
        assert_eq!(unsafe { shohin_chat_get_usage(self.chat, &mut usage, null_mut()) }, SHOHIN_OK);
        usage
    }

    fn next(&self) -> (shohin_code, String) {
        let mut piece = shohin_piece::default();
        // SAFETY: a chat and a variable.
        let code = unsafe { shohin_chat_next(self.chat, &mut piece, null_mut()) };
        // SAFETY: the piece's text.
        let text = unsafe { std::slice::from_raw_parts(piece.text.cast(), piece.text_len) };
        (code, str::from_utf8(text).unwrap().into())
    }

    /// The rest of the reply.
    fn reply(&self) -> String {
        let mut reply = String::new();
        loop {
            let (code, text) = self.next();
            reply += &text;
            if code != SHOHIN_OK {
                assert_eq!(code, SHOHIN_DONE);
                return reply;
            }
        }
    }

    fn start_over(&self) {
        // SAFETY: a chat.
        assert_eq!(unsafe { shohin_chat_system(self.chat, c"".as_ptr(), 0, null_mut()) }, SHOHIN_OK);
    }

    fn stop(&self) {
        // SAFETY: a chat.
        assert_eq!(unsafe { shohin_chat_stop(self.chat, null_mut()) }, SHOHIN_OK);
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: handles that nothing else uses.
        unsafe {
            shohin_chat_free(self.chat);
            shohin_model_free(self.model);
        }
    }
}

fn file() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/sprout.gguf")).unwrap()
}

/// A long context of the file takes other frequencies than that of the chat.
#[test]
fn the_context_of_the_chat_chooses_the_frequencies() {
    let reply = |original| {
        let chat = Chat::new(long_rope(&file(), original, 4096).unwrap());
        chat.send("What does a cow say?");
        chat.reply()
    };
    let short = reply(4096);
    assert_eq!(reply(256), short);
    assert_ne!(reply(255), short);
}

const COW: &str = "What does a cow say?";
const DOG: &str = "What does a dog say?";

#[test]
fn a_message_without_a_reply_is_not_kept() {
    let chat = Chat::new(file());
    let (alone, _) = chat.send(COW);
    let said = chat.reply();
    assert!(!said.is_empty());
    let position = chat.usage().position;
    let after = chat.send(DOG);
    let bark = chat.reply();

    // The first message, then a later one, ended by a call and by another message.
    chat.start_over();
    chat.send(DOG);
    chat.stop();
    assert_eq!(chat.usage().position, 0);
    assert_eq!(chat.next().0, SHOHIN_DONE);
    chat.send(DOG);
    assert_eq!(chat.send(COW), (alone, 0));
    assert_eq!(chat.reply(), said);
    chat.send(COW);
    chat.stop();
    assert_eq!(chat.usage().position, position);
    chat.send(COW);
    assert_eq!(chat.send(DOG), after);
    assert_eq!(chat.reply(), bark);

    // With a text it is kept.
    chat.start_over();
    chat.send(COW);
    assert!(!chat.next().1.is_empty());
    assert!(chat.send(DOG).0 > alone + 4);
}

#[test]
fn long_messages_do_not_allocate_with_a_template_that_has_instructions() {
    let mut file = file();
    let key = b"tokenizer.chat_template";
    let at = file.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len() + 4;
    let len = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    // The words that SmolLM2's is detected by.
    let words = "add_generation_prompt loop.first and messages[0]['role'] != 'system' <|im_start|>system\n\
                 You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>";
    file[at + 8..][..len].copy_from_slice(format!("{words:len$}").as_bytes());
    let plain = Chat::new(self::file()).send(COW).0;
    let chat = Chat::new(file);
    assert!(chat.send(COW).0 > plain + 10);
    let text = &"What does a cow say? ".repeat(25)[..512];
    for len in [1, 300, 450, 480, 500, 512] {
        chat.start_over();
        let before = ALLOCATIONS.get();
        chat.send(&text[..len]);
        assert_eq!(ALLOCATIONS.get(), before, "{len} bytes");
    }
}
