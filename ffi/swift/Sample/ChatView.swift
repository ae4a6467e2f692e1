import SwiftUI

struct ChatView: View {
    @State private var state = ChatState()
    @State private var text = ""

    var body: some View {
        VStack {
            ScrollView {
                LazyVStack(alignment: .leading, spacing: 8) {
                    ForEach(state.messages) { message in
                        Text(message.text.isEmpty ? "…" : message.text)
                            .padding(12)
                            .background(message.fromUser ? Color.accentColor.opacity(0.2) : Color.gray.opacity(0.15))
                            .clipShape(RoundedRectangle(cornerRadius: 16))
                            .frame(maxWidth: .infinity, alignment: message.fromUser ? .trailing : .leading)
                    }
                }
            }
            // Follows the reply as it grows.
            .defaultScrollAnchor(.bottom)
            if let problem = state.problem {
                Text(problem).foregroundStyle(.red)
            }
            HStack {
                TextField(state.isReady ? "Message" : "Loading the model", text: $text)
                    .textFieldStyle(.roundedBorder)
                    .onSubmit(send)
                if state.isAnswering {
                    Button("Stop", action: state.stop)
                } else {
                    Button("Send", action: send).disabled(!state.isReady || text.isEmpty)
                }
            }
        }
        .padding()
        .task { await state.load() }
    }

    private func send() {
        state.send(text)
        text = ""
    }
}
