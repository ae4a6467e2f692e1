//! The memory nodes of a machine: ranks that are threads get the cores of one each, so that the memory they touch first is
//! near them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Where Linux describes them.
const NODES: &str = "/sys/devices/system/node";

/// The cores that a rank's threads run on; all that the process may use unless a machine has several memory nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cores(Option<Arc<CpuSet>>);

/// The calling thread runs on these cores until this is dropped. Threads that it starts stay there.
#[derive(Debug)]
#[must_use]
pub(super) struct Bound(Option<CpuSet>);

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The system has allowed these cores before.
            let _ = sched_setaffinity(None, before);
        }
    }
}

impl Cores {
    /// Binds the calling thread. Where the system refuses it, threads run as they did: results are the same.
    pub(super) fn bind(&self) -> Bound {
        let bind = |cores| {
            let before = sched_getaffinity(None).ok()?;
            sched_setaffinity(None, cores).ok().map(|()| before)
        };
        Bound(self.0.as_deref().and_then(bind))
    }

    /// Those of each of `ranks` ranks with `threads` threads on this machine.
    pub(super) fn of_ranks(ranks: usize, threads: usize) -> Vec<Cores> {
        match sched_getaffinity(None) {
            Ok(allowed) => divide(&nodes(Path::new(NODES), &allowed), ranks, threads),
            // More cores than a set has room for.
            Err(_) => vec![Cores::default(); ranks],
        }
    }
}

/// The numbers of a list such as `0-3,8`, up to the most that a set has room for.
fn listed(list: &str) -> impl Iterator<Item = usize> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let [first, last] = [first, last].map(|number| number.parse::<usize>());
            Some(first.ok()?..last.ok()?.saturating_add(1).min(CpuSet::MAX_CPU))
        })
        .flatten()
}

/// The cores of each memory node that are `allowed`, in the order of the nodes. Nodes without any are left out.
fn nodes(directory: &Path, allowed: &CpuSet) -> Vec<CpuSet> {
    let number = |name: &str| name.strip_prefix("node")?.parse::<usize>().ok();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(usize, CpuSet)> = entries
        .filter_map(|entry| {
            let number = number(entry.file_name().to_str()?)?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            let mut cores = CpuSet::new();
            listed(&list).filter(|&core| allowed.is_set(core)).for_each(|core| cores.set(core));
            (cores.count() > 0).then_some((number, cores))
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, cores)| cores).collect()
}

/// The cores of each rank: of one node, where there are as many ranks as nodes or more; otherwise of its share of the nodes.
/// Ranks are not bound where threads would share a core: all ranks wait for the slowest.
fn divide(nodes: &[CpuSet], ranks: usize, threads: usize) -> Vec<Cores> {
    let share = |rank: usize| {
        let first = rank * nodes.len() / ranks;
        first..((rank + 1) * nodes.len() / ranks).max(first + 1)
    };
    let has_room = |rank: usize| {
        let cores: usize = nodes[share(rank)].iter().map(|node| node.count() as usize).sum();
        let beside = (0..ranks).filter(|&other| share(other) == share(rank)).count();
        beside * threads <= cores
    };
    if nodes.len() < 2 || !(0..ranks).all(has_room) {
        return vec![Cores::default(); ranks];
    }
    let of = |rank: usize| {
        let mut cores = CpuSet::new();
        let is_there = |core: usize| nodes[share(rank)].iter().any(|node| node.is_set(core));
        (0..CpuSet::MAX_CPU).filter(|&core| is_there(core)).for_each(|core| cores.set(core));
        Cores(Some(Arc::new(cores)))
    };
    (0..ranks).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use crate::split::SplitWeights;
    use crate::{Model, ModelFile};
    use shohin_core::{CpuOptions, Pool, Session};
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    }

    fn cores_of(set: CpuSet) -> Cores {
        Cores(Some(Arc::new(set)))
    }

    fn cores(cores: &[usize]) -> Cores {
        cores_of(set(cores))
    }

    /// A directory like Linux's, with these lists of cores.
    fn machine(lists: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (node, list) in lists {
            fs::create_dir(directory.path().join(node)).unwrap();
            fs::write(directory.path().join(node).join("cpulist"), format!("{list}\n")).unwrap();
        }
        // Other files that are there.
        fs::create_dir(directory.path().join("power")).unwrap();
        fs::write(directory.path().join("online"), "0-1\n").unwrap();
        directory
    }

    #[test]
    fn nodes_are_read_in_order_without_cores_that_are_not_allowed() {
        let machine = machine(&[("node10", "6-7"), ("node2", "0-2,5"), ("node3", ""), ("node4", "9-8,x,3-")]);
        let found = nodes(machine.path(), &set(&[0, 1, 2, 3, 4, 5, 7, 8]));
        assert_eq!(found, [set(&[0, 1, 2, 5]), set(&[7])]);
        assert_eq!(nodes(machine.path(), &set(&[6])), [set(&[6])]);
        assert!(nodes(&machine.path().join("none"), &set(&[0])).is_empty());
        // As a list is text from outside: not more than there is room for.
        assert_eq!(listed("1022-18446744073709551615").collect::<Vec<_>>(), [1022, 1023]);
    }

    #[test]
    fn ranks_are_divided_among_nodes_in_order() {
        let four = [0, 2, 4, 6].map(|first| set(&[first, first + 1]));
        let want = [cores(&[0, 1]), cores(&[2, 3])];
        assert_eq!(divide(&four[..2], 2, 2), want);
        assert_eq!(divide(&four[..2], 4, 1), [&want[0], &want[0], &want[1], &want[1]].map(Clone::clone));
        assert_eq!(divide(&four, 2, 4), [cores(&[0, 1, 2, 3]), cores(&[4, 5, 6, 7])]);
        assert_eq!(divide(&four, 3, 2), [cores(&[0, 1]), cores(&[2, 3]), cores(&[4, 5, 6, 7])]);
        // With one node, nothing changes.
        let unbound = [Cores::default(), Cores::default()];
        assert_eq!(divide(&four[..1], 2, 1), unbound);
        assert_eq!(divide(&[], 2, 1), unbound);
        // Nor where a rank has more threads than cores of its own.
        assert_eq!(divide(&four[..2], 2, 3), unbound);
        assert_eq!(divide(&[set(&[0, 1, 2, 3]), set(&[8])], 2, 2), unbound);
        assert_eq!(divide(&four[..2], 4, 2), [&unbound[..], &unbound].concat());
    }

    /// The first and the last of the cores that this process may use.
    fn two_nodes() -> [CpuSet; 2] {
        let allowed = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        [set(&cores[..1]), set(&cores[cores.len() - 1..])]
    }

    #[test]
    fn a_bound_thread_and_those_it_starts_run_there() {
        let before = sched_getaffinity(None).unwrap();
        let [_, last] = two_nodes();
        let now = || sched_getaffinity(None).unwrap();
        let bound = cores_of(last).bind();
        assert_eq!(now(), last);
        assert_eq!(thread::spawn(now).join().unwrap(), last);
        drop(bound);
        assert_eq!(now(), before);
        drop(Cores::default().bind());
        assert_eq!(now(), before);
    }

    /// The cores of the process's threads with this name.
    fn named(name: &str) -> Vec<String> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let of = |task: fs::DirEntry| {
            let file = |name| fs::read_to_string(task.path().join(name)).ok();
            let status = file("status").filter(|_| file("comm").is_some_and(|comm| comm.trim() == name))?;
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        };
        tasks.filter_map(of).collect()
    }

    /// A split model on a machine with two nodes: each rank's workers and thread run on theirs, rank 0 computes on its own, and
    /// the logits are those of a model that is not split.
    #[test]
    fn ranks_run_on_their_nodes() {
        let before = sched_getaffinity(None).unwrap();
        let nodes = two_nodes();
        let model = Model::builder().cpu().threads(1).context(64).load_built_in().unwrap();
        let options = CpuOptions { context: 64, ..CpuOptions::default() };
        let (file, split) = (ModelFile::built_in(), "tensor:2".parse().unwrap());
        let ranks = divide(&nodes, 2, 1);
        let source = Source::read(&file, Default::default(), |_| Ok(model.config().clone()), &[]).unwrap();
        let weights = SplitWeights::load_on(ranks, &source, split, &options, 4).unwrap();
        for (rank, node) in weights.ranks.iter().zip(&nodes) {
            let (seen, caller) = (Mutex::new(None), thread::current().id());
            while seen.lock().unwrap().is_none() {
                // The caller is slow: the other worker takes a job.
                rank.pool.run(2, &|_| match thread::current().id() == caller {
                    true => thread::sleep(Duration::from_millis(1)),
                    false => *seen.lock().unwrap() = sched_getaffinity(None).ok(),
                });
            }
            assert_eq!(*seen.lock().unwrap(), Some(*node));
        }
        let mut device = weights.device(&options).unwrap();
        let mut session = Session::new(&mut device, &model.session_options(64)).unwrap();
        let (mut on, mut logits) = (None, Vec::new());
        let mut sink = |_, row: &[f32]| {
            on = sched_getaffinity(None).ok();
            logits.extend_from_slice(row);
        };
        session.forward_logits(&mut device, &[1, 2, 3], &mut sink).unwrap();
        assert_eq!(on, Some(nodes[0]));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let last = (0..CpuSet::MAX_CPU).find(|&core| nodes[1].is_set(core)).unwrap().to_string();
        // Threads of other tests have the same name, and may run anywhere.
        assert!(named("shohin-rank-1").contains(&last));
        let mut want = Vec::new();
        let mut whole = model.sequence(64).unwrap();
        whole.logits(&[1, 2, 3], &mut |_, row| want.extend_from_slice(row)).unwrap();
        assert!(logits == want);
    }
}
