// swift-tools-version: 6.0
import Foundation
import PackageDescription

// Made by build-xcframework.sh. Without it the installed library is linked (`cargo xtask ffi --prefix DIR`).
let framework = "CShohin.xcframework"
let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
let isBuilt = FileManager.default.fileExists(atPath: root.appendingPathComponent(framework).path)

let library: Target =
    isBuilt
    ? .binaryTarget(name: "CShohin", path: framework)
    : .systemLibrary(name: "CShohin", path: "Sources/CShohin", pkgConfig: "shohin")

let package = Package(
    name: "Shohin",
    platforms: [.iOS(.v17), .macOS(.v14)],
    products: [.library(name: "Shohin", targets: ["Shohin"])],
    targets: [
        library,
        .target(name: "Shohin", dependencies: ["CShohin"]),
        .testTarget(name: "ShohinTests", dependencies: ["Shohin"]),
    ]
)
