#!/bin/sh
# Builds CShohin.xcframework beside Package.swift, on a Mac with Xcode and rustup:
#
#   CShohin.xcframework/
#     Info.plist
#     ios-arm64/            libshohin_ffi.a  Headers/{shohin.h, module.modulemap}
#     ios-arm64-simulator/  the same
#     macos-arm64/          the same
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
cp "$here/../include/shohin.h" "$headers/"
printf 'module CShohin [system] {\n  header "shohin.h"\n  export *\n}\n' > "$headers/module.modulemap"

set --
for target in aarch64-apple-ios aarch64-apple-ios-sim aarch64-apple-darwin; do
  rustup target add "$target"
  (cd "$root" && cargo build --release --package shohin-ffi --no-default-features --target "$target")
  library=${CARGO_TARGET_DIR:-$root/target}/$target/release/libshohin_ffi.a
  set -- "$@" -library "$library" -headers "$headers"
done
rm -rf "$here/CShohin.xcframework"
xcodebuild -create-xcframework "$@" -output "$here/CShohin.xcframework"
