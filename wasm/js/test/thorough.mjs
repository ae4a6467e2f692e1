/** Options of a test that repeats in one place what others find in another: it runs before a release, by `cargo xtask test --thorough`. */
export const thorough = { skip: process.env.SHOHIN_THOROUGH ? false : "only with SHOHIN_THOROUGH=1" };
