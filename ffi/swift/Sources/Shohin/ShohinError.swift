import CShohin
import Foundation

/// A call failed.
public struct ShohinError: Error, Sendable, Equatable, CustomStringConvertible {
    /// Its stable name, such as `context_full`; the names are those of `shohin_code_name` in `shohin.h`.
    public let code: String
    /// A sentence.
    public let message: String

    public var description: String { message }
}

/// Calls a function of the C interface. The result is `SHOHIN_OK` or `SHOHIN_DONE`.
@discardableResult
func check(_ call: (UnsafeMutablePointer<shohin_error>) -> shohin_code) throws -> shohin_code {
    var error = shohin_error()
    let code = call(&error)
    if code == SHOHIN_OK || code == SHOHIN_DONE { return code }
    let name = shohin_code_name(Int32(code.rawValue)).map { String(cString: $0) } ?? "other"
    let message = withUnsafeBytes(of: error.message) { bytes in
        String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    throw ShohinError(code: name, message: message)
}

/// Calls `body` with the bytes of a text.
@discardableResult
func withText<T>(_ text: String, _ body: (UnsafePointer<CChar>, Int) throws -> T) rethrows -> T {
    try text.utf8CString.withUnsafeBufferPointer { bytes in
        // There is always the NUL at the end, which is not counted.
        try body(bytes.baseAddress!, bytes.count - 1)
    }
}

/// The array that a function fills, which gets the array, its capacity and the place for its length. `expected` is tried
/// first.
func filled<T>(
    _ expected: Int, _ zero: T,
    _ fill: (UnsafeMutablePointer<T>?, Int, UnsafeMutablePointer<Int>, UnsafeMutablePointer<shohin_error>) -> shohin_code
) throws -> [T] {
    var capacity = max(expected, 1)
    while true {
        var count = 0
        var found = [T](repeating: zero, count: capacity)
        do {
            try check { error in
                found.withUnsafeMutableBufferPointer { fill($0.baseAddress, $0.count, &count, error) }
            }
            return Array(found.prefix(count))
        } catch let error as ShohinError where error.code == "short_buffer" {
            capacity = count
        }
    }
}

/// Texts and files that C reads while this object lives.
final class Texts {
    private var buffers: [UnsafeMutableBufferPointer<CChar>] = []
    private var arrays: [UnsafeMutableBufferPointer<shohin_text>] = []
    private var files: [UnsafeMutableBufferPointer<UInt8>] = []

    deinit {
        files.forEach { $0.deallocate() }
        buffers.forEach { $0.deallocate() }
        arrays.forEach { $0.deallocate() }
    }

    func add(_ text: String) -> shohin_text {
        let bytes = text.utf8CString
        let buffer = UnsafeMutableBufferPointer<CChar>.allocate(capacity: bytes.count)
        _ = buffer.initialize(from: bytes)
        buffers.append(buffer)
        return shohin_text(text: buffer.baseAddress, len: bytes.count - 1)
    }

    func add(_ data: Data) -> UnsafePointer<UInt8> {
        // An empty file has an address, too.
        let buffer = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: max(data.count, 1))
        _ = buffer.initialize(from: data)
        files.append(buffer)
        return UnsafePointer(buffer.baseAddress!)
    }

    /// `nil` if there are none.
    func add(_ texts: [String]) -> UnsafePointer<shohin_text>? {
        if texts.isEmpty { return nil }
        let array = UnsafeMutableBufferPointer<shohin_text>.allocate(capacity: texts.count)
        _ = array.initialize(from: texts.map { add($0) })
        arrays.append(array)
        return UnsafePointer(array.baseAddress)
    }
}
