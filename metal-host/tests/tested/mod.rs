//! The driver whose kernels are tested: Metal on a Mac, elsewhere the shim.

#[cfg(not(target_os = "macos"))]
pub(crate) mod shim;

use shohin_metal::Driver;

/// In which order the threads of a threadgroup run between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Forward = 0,
    Reverse = 1,
    Shuffled = 2,
}

impl Order {
    pub(crate) const ALL: [Order; 3] = [Order::Forward, Order::Reverse, Order::Shuffled];
}

#[cfg(not(target_os = "macos"))]
pub(crate) type Tested = shim::Shim;
#[cfg(target_os = "macos")]
pub(crate) type Tested = shohin_metal::Metal;

/// The driver, with threads in this order if that can be chosen.
#[cfg(not(target_os = "macos"))]
pub(crate) fn tested(order: Order) -> Tested {
    shim::Shim::new(order)
}

#[cfg(target_os = "macos")]
pub(crate) fn tested(_: Order) -> Tested {
    shohin_metal::Metal::open().unwrap()
}

/// A buffer with this content.
pub(crate) fn upload<D: Driver, T: bytemuck::Pod>(driver: &D, content: &[T]) -> D::Buffer {
    let bytes = bytemuck::cast_slice(content);
    let buffer = driver.buffer(bytes.len() as u64).unwrap();
    driver.write(&buffer, 0, bytes).unwrap();
    buffer
}

/// The first `count` elements of a buffer.
pub(crate) fn download<D: Driver, T: bytemuck::Pod>(driver: &D, buffer: &D::Buffer, count: usize) -> Vec<T> {
    let mut content = vec![T::zeroed(); count];
    driver.read(buffer, 0, bytemuck::cast_slice_mut(&mut content)).unwrap();
    content
}
