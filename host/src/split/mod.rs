//! A model split among several ranks: each has a part of the weights, of the cache and of the work, see
//! [`Split`](shohin_core::model::Split).

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod group;
#[cfg(feature = "mpi")]
mod mpi_group;
#[cfg(target_os = "linux")]
mod numa;
#[cfg(not(target_os = "linux"))]
#[path = "no_numa.rs"]
mod numa;
mod order;
mod rank;
#[cfg(test)]
mod tests;
mod thread_group;
mod weights;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CudaSplit;
pub(crate) use device::SplitDevice;
#[cfg(any(test, feature = "train"))]
pub(crate) use group::Group;
pub(crate) use group::lost;
#[cfg(feature = "mpi")]
pub use mpi_group::Mpi;
#[cfg(feature = "mpi")]
pub(crate) use mpi_group::{Loaded, World};
pub(crate) use rank::CpuRank;
#[cfg(feature = "train")]
pub(crate) use thread_group::ThreadGroup;
pub(crate) use weights::SplitWeights;
