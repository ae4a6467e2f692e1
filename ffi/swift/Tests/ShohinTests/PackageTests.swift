import Foundation
import XCTest

@testable import Shohin

/// The package over the library, with SHOHIN_MODEL set to a model, SHOHIN_REPLY to its greedy reply and SHOHIN_DEFAULT_REPLY to that by
/// the defaults, SHOHIN_ADAPTER to an adapter for it, and SHOHIN_TOOLS to a model of another vocabulary that can call functions.
final class PackageTests: XCTestCase {
    private static let message = "What does a cow say?"
    private static let wanted = variable("SHOHIN_REPLY")

    private static func variable(_ name: String) -> String {
        ProcessInfo.processInfo.environment[name] ?? ""
    }

    private static func file(_ name: String) -> URL {
        URL(fileURLWithPath: variable(name))
    }

    private func model() async throws -> Model {
        try await Model.load(Self.file("SHOHIN_MODEL"))
    }

    private func greedy(_ maxTokens: UInt32 = 40) -> ChatOptions {
        var options = ChatOptions()
        options.temperature = 0
        options.maxTokens = maxTokens
        return options
    }

    /// So random that it does not end by itself soon.
    private var wild: ChatOptions {
        var options = ChatOptions()
        (options.temperature, options.topK, options.topP) = (50, 0, 1)
        return options
    }

    private func fails<T>(_ code: String, line: UInt = #line, _ call: () async throws -> T) async {
        do {
            _ = try await call()
            XCTFail("no error \(code)", line: line)
        } catch {
            let found = error as? ShohinError
            XCTAssertEqual(found?.code, code, "\(error)", line: line)
            XCTAssertEqual(found?.message.isEmpty, false, line: line)
        }
    }

    private func all<T>(_ stream: AsyncThrowingStream<T, any Error>) async throws -> [T] {
        var found: [T] = []
        for try await one in stream { found.append(one) }
        return found
    }

    func testTheReplyIsThatOfRust() async throws {
        let model = try await model()
        let chat = try model.chat(options: greedy())
        let pieces = try await all(chat.send(Self.message))
        XCTAssertGreaterThan(pieces.count, 1)
        XCTAssertEqual(pieces.joined(), Self.wanted)
        let again = try await all(chat.retry()).map(\.text).joined()
        XCTAssertEqual(again, Self.wanted)
        let usage = try await chat.usage
        XCTAssertTrue(usage.replyTokens > 1 && usage.capacity > usage.position, "\(usage)")
        // The defaults are the library's.
        let reply = try await model.chat().ask(Self.message)
        XCTAssertEqual(reply, Self.variable("SHOHIN_DEFAULT_REPLY"))
        XCTAssertFalse(Model.version.isEmpty)
    }

    func testTheBuiltInModelAnswersAsItsTrainersProgram() async throws {
        var options = LoadOptions()
        (options.threads, options.kvFormat, options.device) = (1, .f32, .cpu)
        let reply = try await Model.builtIn(options: options).chat(options: greedy()).ask("What is 3 plus 4?")
        XCTAssertEqual(reply, "3 plus 4 is 7.")
    }

    func testModelsInMemory() async throws {
        let data = try Data(contentsOf: Self.file("SHOHIN_MODEL"))
        let reply = try await Model.load(data).chat(options: greedy()).ask(Self.message)
        XCTAssertEqual(reply, Self.wanted)
        await fails("malformed") { try await Model.load(Data("not a model".utf8)) }
    }

    func testTokensEmbeddingsAndLogits() async throws {
        let model = try await model()
        for text in ["", "a cow says moo", "é 🐄 \0", String(repeating: "a cow says moo ", count: 100)] {
            XCTAssertEqual(try model.detokenize(model.tokenize(text)), text)
        }
        let vector = try await model.embed("cow")
        XCTAssertEqual(vector.count, model.info.embeddingSize)
        XCTAssertEqual(vector.map { $0 * $0 }.reduce(0, +), 1, accuracy: 1e-3)
        let vectors = try await model.embed(["dog", "cow"])
        XCTAssertEqual(vectors.count, 2)
        XCTAssertEqual(vectors[1], vector)
        XCTAssertNotEqual(vectors[0], vector)
        let none = try await model.embed([String]())
        XCTAssertTrue(none.isEmpty)
        let logits = try await model.logits(after: model.tokenize("The cow"))
        XCTAssertEqual(logits.count, model.info.vocabSize)
        let best = logits.indices.max { logits[$0] < logits[$1] }!
        let first = try await all(model.chat(options: greedy(1)).complete(model.tokenize("The cow"))).joined()
        XCTAssertEqual(first, try model.detokenize([UInt32(best)]))
    }

    func testErrorsHaveCodes() async throws {
        let model = try await model()
        await fails("io") { try await Model.load(URL(fileURLWithPath: "/no such file.gguf")) }
        await fails("not_a_file") { try await Model.load(URL(fileURLWithPath: "/")) }
        await fails("option") { try await Model.load(named: "hf:cow") }
        await fails("token") { try model.detokenize([4_000_000_000]) }
        var options = greedy()
        options.format = .jsonSchema("{")
        await fails("malformed") { try model.chat(options: options) }
        options = greedy()
        options.temperature = -1
        let chat = try model.chat(options: options)
        await fails("option") { try await chat.ask(Self.message) }
        try await chat.setOptions(greedy())
        let reply = try await chat.ask(Self.message)
        XCTAssertEqual(reply, Self.wanted)
        await fails("snapshot_foreign") { try await chat.open(Self.file("SHOHIN_MODEL")) }
    }

    func testAdaptersJoinAModel() async throws {
        let (model, file) = (try await model(), Self.file("SHOHIN_ADAPTER"))
        func logits(_ adapters: Adapter...) async throws -> [Float] {
            try await model.adapted(by: adapters).logits(after: [1, 2, 3])
        }
        let plain = try await model.logits(after: [1, 2, 3])
        let none = try await logits()
        XCTAssertEqual(none, plain)
        let scaled = try await logits(Adapter(file, scale: 0))
        XCTAssertEqual(scaled, plain)
        let half = try await logits(Adapter(file, scale: 0.5))
        XCTAssertNotEqual(half, plain)
        let data = try Data(contentsOf: file)
        let inMemory = try await logits(Adapter(data, scale: 0.5))
        XCTAssertEqual(inMemory, half)
        let both = try await model.adapted(by: [Adapter(file, scale: 0.25), Adapter(data, scale: -0.5)])
        XCTAssertEqual([model.info.adapters, both.info.adapters], [0, 2])
        let reply = try await both.chat(options: greedy()).ask(Self.message)
        XCTAssertFalse(reply.isEmpty)
        await fails("io") { try await logits(Adapter(file), Adapter(URL(fileURLWithPath: "/no such file"))) }
        await fails("truncated") { try await logits(Adapter(Data())) }
    }

    func testLeavingALoopStopsTheReply() async throws {
        let chat = try await model().chat(options: greedy())
        var began = ""
        for try await piece in chat.send(Self.message) {
            began += piece
            break
        }
        XCTAssertTrue(!began.isEmpty && Self.wanted.hasPrefix(began), began)
        let next = try await chat.ask("And a dog?")
        XCTAssertFalse(next.isEmpty)
    }

    func testCancellingATaskStopsTheReply() async throws {
        let chat = try await model().chat(options: wild)
        let (began, note) = AsyncStream<Void>.makeStream()
        let message = Self.message
        let task = Task {
            var pieces = 0
            for try await _ in chat.send(message) {
                pieces += 1
                note.yield()
            }
            return pieces
        }
        for await _ in began { break }
        task.cancel()
        let pieces = try await task.value
        XCTAssertGreaterThan(pieces, 0)
        // What comes next waits for the end of the cancelled reply.
        try await chat.setOptions(greedy())
        let usage = try await chat.usage
        XCTAssertGreaterThan(usage.position, 0)
        let next = try await chat.ask(Self.message)
        XCTAssertFalse(next.isEmpty)
    }

    func testFunctionsAreCalled() async throws {
        let add =
            #"{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}"#
        var options = ChatOptions()
        (options.temperature, options.maxTokens, options.tools, options.toolChoice) = (50, 150, [add], "required")
        let able = try await Model.load(Self.file("SHOHIN_TOOLS"))
        XCTAssertTrue(able.info.canCall)
        let chat = try able.chat(options: options)
        let calls = try await all(chat.reply(to: "Add!")).flatMap(\.toolCalls)
        XCTAssertFalse(calls.isEmpty)
        XCTAssertTrue(calls.allSatisfy { $0.name == "add" && $0.arguments.contains("\"a\"") }, "\(calls)")
        options.toolChoice = "auto"
        try await chat.setOptions(options)
        let reply = try await all(chat.reply(toResults: calls.map { _ in "true" }))
        XCTAssertFalse(reply.isEmpty)
        options.toolChoice = "sub"
        await fails("argument") { [options] in try await chat.setOptions(options) }
        // Described in the system message, where the template has none.
        let model = try await model()
        options = greedy(200)
        (options.tools, options.toolChoice) = ([#"{"name": "moo"}"#], "required")
        await fails("unsupported") { [options] in try await model.chat(options: options).ask(Self.message) }
        options.describeTools = true
        let described = try await all(model.chat(options: options).reply(to: Self.message)).flatMap(\.toolCalls)
        XCTAssertEqual(Set(described.map(\.name)), ["moo"])
    }

    func testFormatsReasonsAndOptions() async throws {
        let model = try await model()
        var options = greedy()
        options.format = .regex("(cow|dog)s?")
        let pieces = try await all(model.chat(options: options).reply(to: Self.message))
        XCTAssertTrue(["cow", "cows", "dog", "dogs"].contains(pieces.map(\.text).joined()))
        XCTAssertEqual(pieces.compactMap(\.reason), [.stop])
        options.format = .choice(["moo", "woof"])
        let choice = try await model.chat(options: options).ask(Self.message)
        XCTAssertTrue(["moo", "woof"].contains(choice), choice)
        options.format = .jsonSchema(#"{"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}"#)
        let json = try await model.chat(options: options).ask(Self.message)
        XCTAssertEqual(json, #"{"a":7}"#)
        let last = try await all(model.chat(options: greedy(2)).reply(to: Self.message)).last
        XCTAssertEqual(last?.reason, .length)
        options = greedy()
        options.stop = ["never", String(Self.wanted.dropFirst(3).prefix(5))]
        let stopped = try await model.chat(options: options).ask(Self.message)
        XCTAssertEqual(stopped, String(Self.wanted.prefix(3)))
        options = greedy()
        options.logprobs = 2
        let measured = try await all(model.chat(options: options).reply(to: Self.message)).flatMap(\.logprobs)
        XCTAssertEqual(try model.detokenize(measured.map(\.chosen.token)), Self.wanted)
        XCTAssertTrue(measured.allSatisfy { $0.top.count == 2 && $0.top[0] == $0.chosen && $0.chosen.logprob <= 0 })
        let plain = try await model.chat(options: greedy()).ask("Tell me a story.")
        options.presencePenalty = 2
        options.frequencyPenalty = 2
        let penalized = try await model.chat(options: options).ask("Tell me a story.")
        XCTAssertNotEqual(penalized, plain)
    }

    func testMessagesAndRequests() async throws {
        let model = try await model()
        let history =
            #"[{"role":"system","content":"You are a farmer."},{"role":"user","content":"Hi!"},{"role":"assistant","content":"Hello!"}]"#
        let chat = try model.chat(options: greedy())
        try await chat.setMessages(history)
        let found = try await chat.messages
        XCTAssertEqual(found, history)
        let reply = try await chat.ask(Self.message)
        try await chat.setMessages(history)
        let json = #"[{"role": "user", "content": "\#(Self.message)"}]"#
        let again = try await all(chat.reply(toMessages: json)).map(\.text).joined()
        XCTAssertEqual(again, reply)
        await fails("argument") { try await chat.setMessages(#"[{"role": "cow"}]"#) }
        let whole = try await all(chat.answer(to: #"{"temperature": 0, "messages": \#(json)}"#))
        XCTAssertEqual(whole.count, 1)
        XCTAssertTrue(whole[0].contains(#""content":"\#(Self.wanted)""#), whole[0])
        let chunks = try await all(chat.answer(to: #"{"temperature": 0, "stream": true, "messages": \#(json)}"#))
        XCTAssertGreaterThan(chunks.count, 3)
        XCTAssertTrue(chunks.allSatisfy { $0.contains("chat.completion.chunk") })
        await fails("argument") { try await self.all(chat.answer(to: "{}")) }
    }

    func testGuesses() async throws {
        let model = try await model()
        let chat = try model.chat(options: greedy())
        try await chat.speculate(draft: model)
        let guessed = try await chat.ask(Self.message)
        XCTAssertEqual(guessed, Self.wanted)
        let usage = try await chat.usage
        XCTAssertTrue(usage.guessesRight > 0 && usage.guessesRight <= usage.guessesChecked, "\(usage)")
        try await chat.speculate()
        let looked = try await chat.ask(Self.message)
        XCTAssertFalse(looked.isEmpty)
    }

    func testASessionGoesOn() async throws {
        let model = try await model()
        let (first, second) = (try model.chat(options: greedy()), try model.chat(options: greedy()))
        _ = try await first.ask(Self.message)
        let file = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID()).session")
        defer { try? FileManager.default.removeItem(at: file) }
        try await first.save(to: file)
        try await second.open(file)
        let (there, here) = (try await first.ask("And a dog?"), try await second.ask("And a dog?"))
        XCTAssertEqual(there, here)
        let usage = try await second.usage
        XCTAssertGreaterThan(usage.cachedTokens, 0)
    }

    func testChatsAtOnceShareAModel() async throws {
        let model = try await model()
        let options = greedy()
        let replies = try await withThrowingTaskGroup(of: String.self) { group in
            for _ in 0..<4 {
                group.addTask { try await model.chat(options: options).ask(Self.message) }
            }
            var replies: [String] = []
            for try await reply in group { replies.append(reply) }
            return replies
        }
        XCTAssertEqual(replies, Array(repeating: Self.wanted, count: 4))
    }

    func testAChatDoesOneThingAfterTheOther() async throws {
        let chat = try await model().chat(system: "You are a farmer.", options: greedy())
        async let first = chat.ask(Self.message)
        async let second = chat.ask(Self.message)
        let replies = try await [first, second]
        XCTAssertTrue(replies.allSatisfy { !$0.isEmpty })
        let messages = try await chat.messages
        XCTAssertEqual(messages.components(separatedBy: #""role":"assistant""#).count, 3, messages)
    }

    func testMemoryIsFreed() async throws {
        weak var freed: Model?
        let chat = try await {
            let model = try await self.model()
            freed = model
            return try model.chat(options: self.greedy())
        }()
        // The thread that loaded it may hold it for a moment longer.
        for _ in 0..<20_000 where freed != nil { try await Task.sleep(nanoseconds: 1_000_000) }
        XCTAssertNil(freed)
        let reply = try await chat.ask(Self.message)
        XCTAssertEqual(reply, Self.wanted)
    }
}
