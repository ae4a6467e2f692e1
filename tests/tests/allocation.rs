//! Memory promises, with a counting allocator: a session takes exactly what it planned, and tokens
//! take nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use shohin_core::gguf::Gguf;
use shohin_core::{Activations, BonsaiModel, KvFormat, Serial, Session, SessionOptions};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (calls, bytes) = (CALLS.load(Relaxed), BYTES.load(Relaxed));
    let result = work();
    (result, CALLS.load(Relaxed) - calls, BYTES.load(Relaxed) - bytes)
}

// One test, so that no other thread of the harness allocates meanwhile.
#[test]
fn a_session_takes_its_plan_once_and_tokens_take_nothing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden_model/synth-micro-q1_0.gguf");
    let bytes = fs::read(path).unwrap();
    let model = BonsaiModel::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
    for activations in [Activations::Int8, Activations::F32] {
        for kv in [KvFormat::F16, KvFormat::F32] {
            let options = SessionOptions { context: 64, activations, kv, ..SessionOptions::default() };
            let plan = model.memory_plan(&options).unwrap();
            let (session, calls, taken) = counted(|| Session::new(&model, &options));
            let mut session = session.unwrap();
            assert_eq!((calls, taken), (1, plan.total));
            let (_, calls, _) = counted(|| {
                session.forward_prefill(&[1, 2, 3, 4, 5], &Serial).unwrap();
                for token in 0..20 {
                    session.forward(token, &Serial).unwrap();
                }
                session.truncate(3).unwrap();
                session.forward_prefill_verify(&[6, 7], &Serial, &mut [0; 2]).unwrap();
            });
            assert_eq!(calls, 0);
        }
    }
}
