import Observation
import Shohin

/// The conversation of a screen.
@MainActor @Observable
final class ChatState {
    struct Message: Identifiable {
        let id: Int
        let fromUser: Bool
        var text: String
    }

    private(set) var messages: [Message] = []
    private(set) var isReady = false
    private(set) var problem: String?
    private var chat: Chat?
    private var reply: Task<Void, Never>?

    var isAnswering: Bool { reply != nil }

    func load() async {
        do {
            // Your own model: Model.load(Bundle.main.url(forResource: "model", withExtension: "gguf")!)
            chat = try await Model.builtIn().chat()
            isReady = true
        } catch {
            problem = "\(error)"
        }
    }

    func send(_ text: String) {
        guard let chat, !isAnswering, !text.isEmpty else { return }
        problem = nil
        messages.append(Message(id: messages.count, fromUser: true, text: text))
        messages.append(Message(id: messages.count, fromUser: false, text: ""))
        let last = messages.count - 1
        reply = Task {
            do {
                for try await piece in chat.send(text) { messages[last].text += piece }
            } catch {
                problem = "\(error)"
            }
            reply = nil
        }
    }

    /// Stops the reply; what there is of it stays.
    func stop() {
        reply?.cancel()
    }
}
