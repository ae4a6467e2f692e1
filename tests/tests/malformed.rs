//! The malformed-file suite, natively.
#![cfg(not(target_arch = "wasm32"))]

macro_rules! native {
    ($($name:ident)*) => {
        $(#[test] fn $name() { shohin_tests::malformed::$name(); })*

        #[test]
        fn none_is_forgotten() {
            let here = [$(stringify!($name)),*];
            let all: Vec<_> = shohin_tests::malformed::ALL.iter().map(|case| case.0).collect();
            assert_eq!(here[..], all[..]);
        }
    };
}

native! {
    sample_is_valid counts lengths array_lengths dimension_counts padded_sums element_products ranges
    truncation alignment shapes names nesting enums starts overlap id_42_untold limits every_bit
    random_flips memory_of_many_items
}
