import CShohin
import Dispatch
import Foundation

/// Options for loading a model.
public struct LoadOptions: Sendable {
    /// The format of the KV cache.
    public enum KVFormat: Int32, Sendable {
        case automatic = 0
        case f32 = 1
        case f16 = 2
        case q8 = 3
        case q4 = 4
        case fp8E4M3 = 5
        case fp8E5M2 = 6
    }

    /// Where a model runs.
    public enum Device: Int32, Sendable {
        /// A GPU if there is a suitable one and the library was built for it, otherwise the CPU.
        case best = 0
        case cpu = 1
        case gpu = 2
    }

    /// 0: one per core.
    public var threads: UInt32 = 0
    /// Context of a chat in tokens, clamped to the model's; 0: 4096.
    public var context: UInt32 = 0
    public var kvFormat = KVFormat.automatic
    public var device = Device.best

    public init() {}

    fileprivate var c: shohin_load_options {
        var options = shohin_load_options()
        options.size = MemoryLayout<shohin_load_options>.size
        options.threads = threads
        options.context = context
        options.kv_format = kvFormat.rawValue
        options.device = device.rawValue
        return options
    }
}

/// Facts about a model.
public struct ModelInfo: Sendable {
    /// Tokens of the vocabulary: the length of logits.
    public let vocabSize: Int
    /// The length of an embedding.
    public let embeddingSize: Int
    /// The longest context it supports, in tokens.
    public let maxContext: Int
    /// The context of its chats, in tokens.
    public let context: Int
    /// Bytes of the weights in memory.
    public let weightBytes: Int
    public let threads: Int
    /// Whether it can reason before it answers.
    public let canThink: Bool
    /// Whether it can call functions.
    public let canCall: Bool
    /// Number of its adapters.
    public let adapters: Int
}

/// An adapter (LoRA) for a model, a GGUF file that `Model.adapted(by:)` reads.
public struct Adapter: Sendable {
    private enum Source: Sendable {
        case file(URL)
        case data(Data)
    }

    private let source: Source
    /// 1 applies it as it was trained; 0 has no effect.
    public var scale: Float

    /// The adapter in a file.
    public init(_ file: URL, scale: Float = 1) {
        source = .file(file)
        self.scale = scale
    }

    /// The adapter in a file that is in memory. The bytes are copied.
    public init(_ data: Data, scale: Float = 1) {
        source = .data(data)
        self.scale = scale
    }

    /// As C has it, while `texts` lives.
    fileprivate func c(_ texts: Texts) -> shohin_adapter {
        var adapter = shohin_adapter()
        adapter.scale = scale
        switch source {
        case .file(let file):
            let path = texts.add(file.path)
            adapter.path = path.text
            adapter.path_len = path.len
        case .data(let data):
            adapter.bytes = texts.add(data)
            adapter.len = data.count
        }
        return adapter
    }
}

/// A loaded model, which may be used by any number of tasks. Its memory is freed with the last reference to it or to one of
/// its chats.
public final class Model: @unchecked Sendable {
    // Sendable: the library's models may be used by several threads at once.
    let pointer: OpaquePointer
    public let info: ModelInfo

    private init(_ pointer: OpaquePointer) throws {
        var info = shohin_model_info()
        info.size = MemoryLayout<shohin_model_info>.size
        do {
            try check { shohin_model_get_info(pointer, &info, $0) }
        } catch {
            shohin_model_free(pointer)
            throw error
        }
        self.pointer = pointer
        self.info = ModelInfo(
            vocabSize: info.vocab_size, embeddingSize: info.embedding_size, maxContext: info.max_context,
            context: info.context, weightBytes: info.weight_bytes, threads: info.threads,
            canThink: info.can_think != 0, canCall: info.can_call != 0, adapters: info.adapters)
    }

    deinit {
        shohin_model_free(pointer)
    }

    /// The version of the library.
    public static var version: String { String(cString: shohin_version()) }

    /// Loads a GGUF file, or a model in parts by the name of any of them. Do not change the file while it is in use.
    public static func load(_ file: URL, options: LoadOptions = LoadOptions()) async throws -> Model {
        try await computing {
            try make { model, error in
                var options = options.c
                return withText(file.path) { shohin_model_load($0, $1, &options, model, error) }
            }
        }
    }

    /// Loads a model by its path, or by a name of the Hugging Face Hub, `hf:OWNER/REPOSITORY/FILE`, which is downloaded unless it was
    /// before. The framework for phones has no downloads, and names are the error `unsupported` there.
    public static func load(named name: String, options: LoadOptions = LoadOptions()) async throws -> Model {
        try await computing {
            try make { model, error in
                var options = options.c
                return withText(name) { shohin_model_load($0, $1, &options, model, error) }
            }
        }
    }

    /// Loads a GGUF file that is in memory. The bytes are copied.
    public static func load(_ data: Data, options: LoadOptions = LoadOptions()) async throws -> Model {
        try await computing {
            try make { model, error in
                var options = options.c
                return data.withUnsafeBytes { bytes in
                    let start = bytes.bindMemory(to: UInt8.self).baseAddress
                    return shohin_model_load_memory(start, bytes.count, &options, model, error)
                }
            }
        }
    }

    /// Loads the small model that is built into the library.
    public static func builtIn(options: LoadOptions = LoadOptions()) async throws -> Model {
        try await computing {
            try make { model, error in
                var options = options.c
                return shohin_model_load_built_in(&options, model, error)
            }
        }
    }

    /// The same model with adapters, in addition to those that it has. Both share the weights, and run side by side: it takes the
    /// memory of the adapters alone. The error `option` is that of a model that runs on a GPU: load it with `Device.cpu`.
    public func adapted(by adapters: [Adapter]) async throws -> Model {
        try await computing { [self] in
            let texts = Texts()
            let all = adapters.map { $0.c(texts) }
            return try withExtendedLifetime(texts) {
                try Model.make { model, error in
                    all.withUnsafeBufferPointer {
                        shohin_model_adapted(pointer, $0.baseAddress, $0.count, model, error)
                    }
                }
            }
        }
    }

    private static func make(
        _ load: (UnsafeMutablePointer<OpaquePointer?>, UnsafeMutablePointer<shohin_error>) -> shohin_code
    ) throws -> Model {
        var pointer: OpaquePointer?
        try check { load(&pointer, $0) }
        guard let pointer else { throw ShohinError(code: "other", message: "the library gave no model") }
        return try Model(pointer)
    }

    /// Begins a conversation, with instructions for the whole of it.
    public func chat(system: String? = nil, options: ChatOptions = ChatOptions()) throws -> Chat {
        try Chat(model: self, system: system, options: options)
    }

    /// The tokens of a text, with the beginning-of-sequence token if the model uses one.
    public func tokenize(_ text: String) throws -> [UInt32] {
        try withText(text) { start, count in
            // A token is at least a byte, and there may be one for the beginning.
            try filled(count + 1, UInt32(0)) { shohin_tokenize(pointer, start, count, $0, $1, $2, $3) }
        }
    }

    /// The text of tokens, without control tokens.
    public func detokenize(_ tokens: [UInt32]) throws -> String {
        let bytes = try filled(8 * tokens.count, CChar(0)) { text, capacity, count, error in
            tokens.withUnsafeBufferPointer {
                shohin_detokenize(pointer, $0.baseAddress, $0.count, text, capacity, count, error)
            }
        }
        return String(decoding: bytes.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    /// The embedding of a text, of length 1: the mean of the final hidden states.
    public func embed(_ text: String) async throws -> [Float] {
        try await computing { [self] in
            try withText(text) { start, count in
                try filled(info.embeddingSize, Float(0)) { shohin_embed(pointer, start, count, $0, $1, $2, $3) }
            }
        }
    }

    /// The embeddings of several texts.
    public func embed(_ texts: [String]) async throws -> [[Float]] {
        try await computing { [self] in
            let size = info.embeddingSize
            let c = Texts()
            let all = c.add(texts)
            let numbers = try withExtendedLifetime(c) {
                try filled(size * texts.count, Float(0)) {
                    shohin_embed_texts(pointer, all, texts.count, $0, $1, $2, $3)
                }
            }
            return texts.indices.map { Array(numbers[$0 * size..<($0 + 1) * size]) }
        }
    }

    /// The logits of the token after some tokens.
    public func logits(after tokens: [UInt32]) async throws -> [Float] {
        try await computing { [self] in
            try filled(info.vocabSize, Float(0)) { logits, capacity, count, error in
                tokens.withUnsafeBufferPointer {
                    shohin_logits(pointer, $0.baseAddress, $0.count, logits, capacity, count, error)
                }
            }
        }
    }
}

/// Runs a call that takes long on a thread for that: tasks must not block the threads that they share.
func computing<T: Sendable>(_ call: @escaping @Sendable () throws -> T) async throws -> T {
    try await withCheckedThrowingContinuation { continuation in
        DispatchQueue.global(qos: .userInitiated).async {
            continuation.resume(with: Result { try call() })
        }
    }
}
