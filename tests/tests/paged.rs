//! Sessions in pages: the same bits as in one piece of memory, and shared memory until one of them writes.

use shohin_core::cpu::{Cpu, CpuOptions};
use shohin_core::device::ready;
use shohin_core::{Device, Format, KvFormat, Session, SessionOptions};
use shohin_tests::cpu::repacked;
use shohin_tests::model::{Model, Shape, Stored};

type Machine = Cpu<'static, Vec<u8>>;

fn model() -> Machine {
    let shape = Shape { layers: 2, vocab: 293, context: 1024, ..Shape::tiny() };
    let file = Model::new(shape, Stored::new(Format::Q1_0), 11).to_vec().unwrap();
    repacked(&file, &CpuOptions { context: 1024, batch: 64, ..CpuOptions::default() }).unwrap()
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 31 + i * seed + seed) % 293).collect()
}

fn export(device: &mut Machine, session: &mut Session<Machine>) -> Vec<u8> {
    let mut bytes = Vec::new();
    ready(session.export(device, &mut bytes)).unwrap().unwrap();
    bytes
}

fn fork(device: &mut Machine, session: &mut Session<Machine>, len: usize) -> Session<Machine> {
    ready(session.fork(device, len)).unwrap().unwrap()
}

/// Bytes of a page of this model: 128 positions of four heads.
fn page(device: &mut Machine, kv: KvFormat) -> usize {
    let options = SessionOptions { context: 128, kv, ..SessionOptions::default() };
    let mut session = Session::new(device, &options).unwrap();
    session.set_len(128).unwrap();
    session.export_len(device)
}

#[test]
fn pages_have_the_bits_of_one_piece_of_memory() {
    let device = &mut model();
    let patterns = [(KvFormat::F16, "window:100:4"), (KvFormat::Q8, "strided:2:2")];
    for (kv, attention) in KvFormat::ALL.map(|kv| (kv, "full")).into_iter().chain(patterns) {
        // Not a number of whole pages.
        let options = SessionOptions { context: 401, kv, attention: attention.parse().unwrap() };
        let mut whole = Session::new(device, &options).unwrap();
        let mut paged = Session::paged(device, &options).unwrap();
        assert_eq!((paged.capacity(), device.page_bytes()), (401, Some(0)));
        let mut equal = |device: &mut _, paged: &mut Session<_>, feed: &[u32]| {
            let want = whole.forward_prefill(device, feed).unwrap().to_vec();
            assert_eq!(paged.forward_prefill(device, feed).unwrap(), want, "{kv:?} {attention}");
            assert!(export(device, &mut whole) == export(device, paged), "{kv:?} {attention}");
        };
        equal(device, &mut paged, &tokens(300, 1));
        (0..3).for_each(|token| equal(device, &mut paged, &[token]));
        assert_eq!(device.page_bytes(), Some(3 * page(device, kv)));
        // Imported over what it holds, in another session.
        let bytes = export(device, &mut paged);
        let mut other = Session::paged(device, &options).unwrap();
        other.forward_prefill(device, &tokens(9, 3)).unwrap();
        other.import(device, 303, &bytes).unwrap();
        equal(device, &mut other, &tokens(401 - 303, 2));
        assert_eq!(other.forward(device, 1).map_err(|e| e.code()), Err("context_full"));
    }
}

#[test]
fn shifted_pages_have_the_bits_of_one_piece_of_memory() {
    let device = &mut model();
    for kv in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
        let options = SessionOptions { context: 401, kv, ..SessionOptions::default() };
        // Within pages, and from one to another.
        for (keep, drop) in [(4, 150), (130, 10)] {
            let mut whole = Session::new(device, &options).unwrap();
            let mut paged = Session::paged(device, &options).unwrap();
            let mut kept = None;
            for session in [&mut whole, &mut paged] {
                session.forward_prefill(device, &tokens(390, 5)).unwrap();
                kept = Some(fork(device, session, 390));
                session.shift(device, keep, drop).unwrap();
            }
            assert!(export(device, &mut whole) == export(device, &mut paged), "{kv:?} {keep} {drop}");
            let want = whole.forward(device, 9).unwrap().to_vec();
            assert_eq!(paged.forward(device, 9).unwrap(), want);
            // One that shared the pages is as before.
            whole.truncate(0).unwrap();
            let want = whole.forward_prefill(device, &[tokens(390, 5), vec![8]].concat()).unwrap().to_vec();
            assert_eq!(kept.unwrap().forward(device, 8).unwrap(), want, "{kv:?} {keep} {drop}");
        }
    }
}

#[test]
fn forks_share_pages_until_one_of_them_writes() {
    let device = &mut model();
    for kv in [KvFormat::F16, KvFormat::Q4] {
        let options = SessionOptions { context: 700, kv, ..SessionOptions::default() };
        let page = page(device, kv);
        let pages = |device: &Machine| device.page_bytes().unwrap() / page;
        let mut first = Session::paged(device, &options).unwrap();
        let prompt = tokens(300, 7);
        first.forward_prefill(device, &prompt).unwrap();
        assert_eq!(device.page_bytes(), Some(3 * page));
        // Forks take nothing; those that write copy the last page only.
        let mut forks: Vec<_> = (0..20).map(|_| fork(device, &mut first, 300)).collect();
        assert_eq!(pages(device), 3);
        let mut alone = Session::new(device, &options).unwrap();
        for (i, fork) in forks.iter_mut().enumerate() {
            let rest = tokens(5 + i, i as u32);
            let got = fork.forward_prefill(device, &rest).unwrap().to_vec();
            assert_eq!(pages(device), 3 + i + 1);
            alone.truncate(0).unwrap();
            alone.forward_prefill(device, &prompt).unwrap();
            assert_eq!(alone.forward_prefill(device, &rest).unwrap(), got, "{kv:?} {i}");
        }
        // The first one's last page is its own again.
        first.forward(device, 1).unwrap();
        assert_eq!(pages(device), 23);
        // At the end of a page nothing is copied, and within an earlier one only that.
        let mut at_end = fork(device, &mut first, 256);
        at_end.forward(device, 1).unwrap();
        assert_eq!(pages(device), 24);
        let mut earlier = fork(device, &mut first, 100);
        earlier.forward(device, 1).unwrap();
        assert_eq!(pages(device), 25);
        alone.truncate(0).unwrap();
        alone.forward_prefill(device, &prompt[..100]).unwrap();
        assert!(earlier.truncate(100).is_ok() && export(device, &mut earlier) == export(device, &mut alone));
        // Reading does not copy, and tokens after the fork are not exported.
        let mut reader = fork(device, &mut first, 256);
        assert_eq!((export(device, &mut reader).len(), pages(device)), (2 * page, 25));
        assert_eq!(ready(first.fork(device, 302)).unwrap().map(|_| ()).map_err(|e| e.code()), Err("option"));
        drop((forks, first, at_end, earlier, reader));
        assert_eq!(device.page_bytes(), Some(0));
    }
}

/// As on devices without pages.
#[test]
fn forks_of_one_piece_of_memory_are_copies() {
    let device = &mut model();
    let options = SessionOptions { context: 150, ..SessionOptions::default() };
    let mut first = Session::new(device, &options).unwrap();
    first.forward_prefill(device, &tokens(140, 1)).unwrap();
    let mut alone = Session::new(device, &options).unwrap();
    alone.forward_prefill(device, &tokens(140, 1)).unwrap();
    let mut copy = fork(device, &mut first, 130);
    assert_eq!((copy.position(), copy.capacity(), device.page_bytes()), (130, 150, Some(0)));
    // The first one has lost nothing.
    let want = alone.forward(device, 3).unwrap().to_vec();
    assert_eq!(first.forward(device, 3).unwrap(), want);
    first.truncate(130).unwrap();
    let want = first.forward(device, 5).unwrap().to_vec();
    assert_eq!(copy.forward(device, 5).unwrap(), want);
}
