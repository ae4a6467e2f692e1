import CShohin
import Dispatch
import Foundation

/// The format of replies.
public enum ReplyFormat: Sendable {
    /// Any text.
    case text
    case jsonObject
    /// A JSON value that matches a JSON Schema.
    case jsonSchema(String)
    /// A text that an expression matches from beginning to end.
    case regex(String)
    /// A text of a grammar in GBNF.
    case grammar(String)
    /// One of these texts.
    case choice([String])

    fileprivate var c: (Int32, String) {
        switch self {
        case .text: (SHOHIN_FORMAT_TEXT, "")
        case .choice: (SHOHIN_FORMAT_CHOICE, "")
        case .jsonObject: (SHOHIN_FORMAT_JSON_OBJECT, "")
        case .jsonSchema(let schema): (SHOHIN_FORMAT_JSON_SCHEMA, schema)
        case .regex(let expression): (SHOHIN_FORMAT_REGEX, expression)
        case .grammar(let grammar): (SHOHIN_FORMAT_GRAMMAR, grammar)
        }
    }
}

/// Whether a model may reason before it answers.
public enum Thinking: Sendable {
    case off
    case on
    /// At most so many tokens.
    case limited(UInt16)

    fileprivate var c: Int32 {
        switch self {
        case .off: SHOHIN_THINKING_OFF
        case .on: SHOHIN_THINKING_ON
        case .limited(let tokens): Int32(tokens)
        }
    }
}

/// Options of replies. `nil` is the library's default.
public struct ChatOptions: Sendable {
    /// The same seed gives the same reply, also by `retry`; 0 unless set.
    public var seed: UInt64?
    /// 0 always takes the most likely token.
    public var temperature: Float?
    /// Keeps the most likely tokens; 0 keeps all.
    public var topK: UInt32?
    /// Keeps the most likely tokens with this much probability together; 1 keeps all.
    public var topP: Float?
    /// Keeps tokens at least this likely, relative to the most likely one; 0 keeps all.
    public var minP: Float?
    /// Over 1, makes the last 64 tokens less likely.
    public var repetitionPenalty: Float?
    /// Subtracted from the logits of tokens that occurred among the last 64.
    public var presencePenalty: Float?
    /// Subtracted from them for each time that they occurred.
    public var frequencyPenalty: Float?
    /// How many of the most likely tokens, 0 to 20, are measured beside the one that was chosen; `nil`: none is.
    public var logprobs: UInt8?
    /// Of a reply; 0: only the context limits it.
    public var maxTokens: UInt32 = 0
    public var thinking = Thinking.off
    public var format = ReplyFormat.text
    /// Texts that end a reply, and are not part of it.
    public var stop: [String] = []
    /// Functions that the model may call, each described by a JSON text as in OpenAI's `tools`.
    public var tools: [String] = []
    /// `auto`, `required`, or the name of the function that must be called.
    public var toolChoice = "auto"
    /// Whether a model whose template has no tools gets them described in the system message; otherwise they are an error with it.
    public var describeTools = false

    public init() {}

    /// Calls `body` with the options as C has them.
    @discardableResult
    fileprivate func withC<T>(_ body: (UnsafePointer<shohin_chat_options>) throws -> T) throws -> T {
        var options = shohin_chat_options()
        try check { shohin_chat_options_default(&options, MemoryLayout<shohin_chat_options>.size, $0) }
        options.seed = seed ?? options.seed
        options.temperature = temperature ?? options.temperature
        options.top_k = topK ?? options.top_k
        options.top_p = topP ?? options.top_p
        options.min_p = minP ?? options.min_p
        options.repetition_penalty = repetitionPenalty ?? options.repetition_penalty
        options.presence_penalty = presencePenalty ?? options.presence_penalty
        options.frequency_penalty = frequencyPenalty ?? options.frequency_penalty
        options.logprobs = logprobs.map { Int32($0) } ?? SHOHIN_NO_LOGPROBS
        options.describe_tools = describeTools ? 1 : 0
        options.max_tokens = maxTokens
        options.thinking = thinking.c
        let texts = Texts()
        let (format, formatText) = format.c
        let (form, choice) = (texts.add(formatText), texts.add(toolChoice))
        options.format = format
        options.format_text = form.text
        options.format_text_len = form.len
        if case .choice(let choices) = self.format {
            options.choices = texts.add(choices)
            options.choice_count = choices.count
        }
        options.stop = texts.add(stop)
        options.stop_count = stop.count
        options.tools = texts.add(tools)
        options.tool_count = tools.count
        options.tool_choice = choice.text
        options.tool_choice_len = choice.len
        return try withExtendedLifetime(texts) { try body(&options) }
    }
}

/// A call of a function by the model.
public struct ToolCall: Sendable, Equatable {
    public let name: String
    /// A JSON text.
    public let arguments: String
}

/// A token and the natural logarithm of its probability.
public struct Logprob: Sendable, Equatable {
    public let token: UInt32
    public let logprob: Float

    fileprivate init(_ c: shohin_logprob) {
        token = c.token
        logprob = c.logprob
    }
}

/// A token of a reply, and the most likely ones in its place, best first.
public struct TokenLogprob: Sendable, Equatable {
    public let chosen: Logprob
    public let top: [Logprob]
}

/// Why a reply ended.
public enum EndReason: Int32, Sendable {
    /// The model ended it.
    case stop = 1
    /// It has `maxTokens` tokens.
    case length = 2
    case contextFull = 3
    /// It was stopped.
    case cancelled = 4
}

/// A piece of a reply: whole characters.
public struct Piece: Sendable {
    /// For the reader; may be empty.
    public let text: String
    /// The model's reasoning.
    public let reasoning: String
    /// The token that the model chose.
    public let token: Int32?
    /// Why the reply ended with this piece.
    public let reason: EndReason?
    /// Calls that are now complete; answer them with `Chat.reply(toResults:)`.
    public let toolCalls: [ToolCall]
    /// Tokens whose text is now complete, if the options ask for `logprobs`; none of those that a stop text cut off.
    public let logprobs: [TokenLogprob]

    fileprivate init(_ piece: shohin_piece) {
        func string(_ start: UnsafePointer<CChar>?, _ count: Int) -> String {
            String(decoding: UnsafeRawBufferPointer(start: start, count: count), as: UTF8.self)
        }
        text = string(piece.text, piece.text_len)
        reasoning = string(piece.reasoning, piece.reasoning_len)
        token = piece.token == SHOHIN_NO_TOKEN ? nil : piece.token
        reason = EndReason(rawValue: piece.reason)
        toolCalls = UnsafeBufferPointer(start: piece.tool_calls, count: piece.tool_call_count).map {
            ToolCall(name: string($0.name, $0.name_len), arguments: string($0.arguments, $0.arguments_len))
        }
        logprobs = UnsafeBufferPointer(start: piece.logprobs, count: piece.logprob_count).map {
            TokenLogprob(
                chosen: Logprob($0.chosen),
                top: UnsafeBufferPointer(start: $0.top, count: $0.top_count).map { Logprob($0) })
        }
    }
}

/// Of the last reply.
public struct Usage: Sendable {
    public let promptTokens: Int
    /// Prompt tokens that were in the KV cache.
    public let cachedTokens: Int
    public let replyTokens: Int
    /// To the first token.
    public let promptSeconds: Double
    /// From the first token to the end.
    public let replySeconds: Double
    /// Tokens that the KV cache holds.
    public let position: Int
    /// Most tokens that fit into it.
    public let capacity: Int
    /// Of `speculate`, in the whole conversation.
    public let guessesChecked: Int
    public let guessesRight: Int
}

/// A conversation, with its own KV cache. When the context is full, the oldest exchanges are left out.
///
/// It computes on a queue of its own, one thing after the other: what is asked for during a reply waits for its end.
public actor Chat {
    private let handle: ChatHandle
    private let queue = ChatQueue()

    public nonisolated var unownedExecutor: UnownedSerialExecutor { queue.asUnownedSerialExecutor() }

    init(model: Model, system: String?, options: ChatOptions) throws {
        var pointer: OpaquePointer?
        try options.withC { options in
            try check { shohin_chat_new(model.pointer, options, &pointer, $0) }
        }
        guard let pointer else { throw ShohinError(code: "other", message: "the library gave no chat") }
        let handle = ChatHandle(pointer)
        if let system {
            try withText(system) { start, count in
                try check { shohin_chat_system(handle.pointer, start, count, $0) }
            }
        }
        self.handle = handle
    }

    /// Sends a message; the texts of the reply. Leaving the loop stops the reply, and the conversation keeps its text so far.
    public nonisolated func send(_ text: String) -> AsyncThrowingStream<String, any Error> {
        stream({ $0.text.isEmpty ? nil : $0.text }) { chat, error in
            withText(text) { shohin_chat_send(chat, $0, $1, error) }
        }
    }

    /// Sends a message; the whole reply as one text. Cancelling the task stops it, and gives its text so far.
    public nonisolated func ask(_ text: String) async throws -> String {
        var reply = ""
        for try await piece in send(text) { reply += piece }
        return reply
    }

    /// As `send`, with everything that a piece has.
    public nonisolated func reply(to text: String) -> AsyncThrowingStream<Piece, any Error> {
        stream({ $0 }) { chat, error in
            withText(text) { shohin_chat_send(chat, $0, $1, error) }
        }
    }

    /// Sends messages: a JSON text, an array as in OpenAI's API.
    public nonisolated func reply(toMessages messages: String) -> AsyncThrowingStream<Piece, any Error> {
        stream({ $0 }) { chat, error in
            withText(messages) { shohin_chat_send_messages(chat, $0, $1, error) }
        }
    }

    /// The answer to a request in the form of OpenAI's chat completions, a JSON text: the whole of it, or with `"stream": true` its
    /// chunks. The messages of the request take the place of those of the chat, whose options stay as they are.
    public nonisolated func answer(to request: String) -> AsyncThrowingStream<String, any Error> {
        computed(
            { chat, error in withText(request) { shohin_chat_request(chat, $0, $1, error) } },
            { try nextAnswer($0) })
    }

    /// Sends what the functions returned that the last reply called, one text for each call.
    public nonisolated func reply(toResults results: [String]) -> AsyncThrowingStream<Piece, any Error> {
        stream({ $0 }) { chat, error in
            let texts = Texts()
            return withExtendedLifetime(texts) {
                shohin_chat_send_results(chat, texts.add(results), results.count, error)
            }
        }
    }

    /// Another reply to the last message, in the place of the last one: the same unless the options have changed, such as the seed.
    /// A message whose reply ended before any text was not kept, and is the error `argument`: send it again.
    public nonisolated func retry() -> AsyncThrowingStream<Piece, any Error> {
        stream({ $0 }) { chat, error in shohin_chat_retry(chat, error) }
    }

    /// Continues tokens as plain text; the conversation stays as it is.
    public nonisolated func complete(_ tokens: [UInt32]) -> AsyncThrowingStream<String, any Error> {
        stream({ $0.text.isEmpty ? nil : $0.text }) { chat, error in
            tokens.withUnsafeBufferPointer { shohin_chat_complete(chat, $0.baseAddress, $0.count, error) }
        }
    }

    /// Sets the options of the next replies. Numbers out of range are reported by the next reply.
    public func setOptions(_ options: ChatOptions) throws {
        try options.withC { options in
            try check { shohin_chat_set_options(handle.pointer, options, $0) }
        }
    }

    /// Starts over, with these instructions for the whole conversation.
    public func setSystem(_ text: String) throws {
        try withText(text) { start, count in
            try check { shohin_chat_system(handle.pointer, start, count, $0) }
        }
    }

    /// The messages so far: a JSON text, an array as in OpenAI's API.
    public var messages: String {
        get throws {
            let bytes = try filled(1024, CChar(0)) { shohin_chat_get_messages(handle.pointer, $0, $1, $2, $3) }
            return String(decoding: bytes.map { UInt8(bitPattern: $0) }, as: UTF8.self)
        }
    }

    /// Starts over with the messages of another conversation, in the same form.
    public func setMessages(_ messages: String) throws {
        try withText(messages) { start, count in
            try check { shohin_chat_set_messages(handle.pointer, start, count, $0) }
        }
    }

    /// Decodes with guesses from now on: the same replies (on a GPU but for near ties), faster where guesses are right. They
    /// come from a smaller model with the same vocabulary, or, if it is `nil`, from what followed the last tokens where they
    /// occurred before.
    public func speculate(draft: Model? = nil) throws {
        try check { shohin_chat_speculate(handle.pointer, draft?.pointer, $0) }
    }

    /// Token counts and times of the last reply.
    public var usage: Usage {
        get throws {
            var usage = shohin_usage()
            usage.size = MemoryLayout<shohin_usage>.size
            try check { shohin_chat_get_usage(handle.pointer, &usage, $0) }
            return Usage(
                promptTokens: usage.prompt_tokens, cachedTokens: usage.cached_tokens,
                replyTokens: usage.reply_tokens, promptSeconds: usage.prompt_seconds,
                replySeconds: usage.reply_seconds, position: usage.position, capacity: usage.capacity,
                guessesChecked: usage.guesses_checked, guessesRight: usage.guesses_right)
        }
    }

    /// Writes the conversation to a file, with the keys and values of its tokens.
    public func save(to file: URL) throws {
        try withText(file.path) { start, count in
            try check { shohin_chat_save(handle.pointer, start, count, $0) }
        }
    }

    /// Goes on with the conversation of such a file. The model and its `kvFormat` must be the same.
    public func open(_ file: URL) throws {
        try withText(file.path) { start, count in
            try check { shohin_chat_open(handle.pointer, start, count, $0) }
        }
    }

    private typealias Begin = @Sendable (OpaquePointer, UnsafeMutablePointer<shohin_error>) -> shohin_code

    private nonisolated func stream<Element: Sendable>(
        _ element: @escaping @Sendable (Piece) -> Element?, _ begin: @escaping Begin
    ) -> AsyncThrowingStream<Element, any Error> {
        computed(begin) { chat in
            while let piece = try nextPiece(chat) {
                if let element = element(piece) { return element }
            }
            return nil
        }
    }

    /// A stream of what `next` computes until it is `nil`.
    private nonisolated func computed<Element: Sendable>(
        _ begin: @escaping Begin, _ next: @escaping @Sendable (OpaquePointer) throws -> Element?
    ) -> AsyncThrowingStream<Element, any Error> {
        AsyncThrowingStream { continuation in
            let turn = Turn(handle)
            continuation.onTermination = { _ in turn.cancel() }
            Task {
                do {
                    try await run(turn, begin) {
                        guard let element = try next($0) else { return false }
                        continuation.yield(element)
                        return true
                    }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
        }
    }

    /// Computes a reply. It does not suspend, so that no other call comes in between.
    private func run(
        _ turn: Turn, _ begin: Begin, _ next: @Sendable (OpaquePointer) throws -> Bool
    ) throws {
        guard turn.start() else { return }
        defer { turn.end() }
        try check { begin(handle.pointer, $0) }
        while !turn.isCancelled {
            if try !next(handle.pointer) { return }
        }
        try check { shohin_chat_stop(handle.pointer, $0) }
    }
}

/// The next piece of a chat's reply; `nil` after the last one.
private func nextPiece(_ chat: OpaquePointer) throws -> Piece? {
    var piece = shohin_piece()
    piece.size = MemoryLayout<shohin_piece>.size
    let code = try check { shohin_chat_next(chat, &piece, $0) }
    return code == SHOHIN_DONE ? nil : Piece(piece)
}

/// The next text of a chat's answer; `nil` after the last one.
private func nextAnswer(_ chat: OpaquePointer) throws -> String? {
    var answer = shohin_text()
    let code = try check { shohin_chat_next_answer(chat, &answer, $0) }
    if code == SHOHIN_DONE { return nil }
    return String(decoding: UnsafeRawBufferPointer(start: answer.text, count: answer.len), as: UTF8.self)
}

/// Runs the jobs of a chat one after the other, on a thread that may wait. (On Apple's systems alone a `DispatchSerialQueue` does that by
/// itself.)
private final class ChatQueue: SerialExecutor {
    private let queue = DispatchQueue(label: "rs.shohin.chat", qos: .userInitiated)

    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
    }

    func asUnownedSerialExecutor() -> UnownedSerialExecutor {
        UnownedSerialExecutor(ordinary: self)
    }
}

/// A chat of the library.
final class ChatHandle: @unchecked Sendable {
    // Sendable: the actor uses it on one thread at a time, and interrupting it is allowed on any.
    let pointer: OpaquePointer

    init(_ pointer: OpaquePointer) {
        self.pointer = pointer
    }

    deinit {
        shohin_chat_free(pointer)
    }
}

/// A reply that waits for its turn, is computed, or is over.
private final class Turn: @unchecked Sendable {
    // Sendable: the lock guards what changes.
    private let handle: ChatHandle
    private let lock = NSLock()
    private var running = false
    private var cancelled = false

    init(_ handle: ChatHandle) {
        self.handle = handle
    }

    var isCancelled: Bool { lock.withLock { cancelled } }

    /// `false` if it was cancelled before.
    func start() -> Bool {
        lock.withLock {
            running = !cancelled
            return running
        }
    }

    func end() {
        lock.withLock { running = false }
    }

    /// Ends the computation, of a long prompt, too; never that of another turn.
    func cancel() {
        lock.withLock {
            cancelled = true
            if running { shohin_chat_interrupt(handle.pointer, nil) }
        }
    }
}
