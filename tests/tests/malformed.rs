//! The malformed-file suite, natively and under WASI (where `usize` has 32 bits).

macro_rules! native {
    ($module:ident: $($name:ident)*) => {
        mod $module {
            $(#[test] fn $name() { shohin_tests::malformed::$module::$name(); })*

            #[test]
            fn none_is_forgotten() {
                let here = [$(stringify!($name)),*];
                let all: Vec<_> = shohin_tests::malformed::$module::ALL.iter().map(|case| case.0).collect();
                assert_eq!(here[..], all[..]);
            }
        }
    };
}

native! { container:
    sample_is_valid counts lengths array_lengths array_sizes dimension_counts padded_sums element_products ranges
    truncation alignment shapes names nesting enums starts overlap id_42_untold limits every_bit
    random_flips memory_of_many_items
}

native! { model:
    valid_model_runs hyper_parameters float_parameters other_architectures experts_that_do_not_add_up tensors tokens
    vocabulary_arrays merges endless_text templates state values random_headers logits
}
