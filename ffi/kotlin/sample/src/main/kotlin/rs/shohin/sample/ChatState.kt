package rs.shohin.sample

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import rs.shohin.Chat
import rs.shohin.Model
import rs.shohin.ShohinException

data class Message(val fromUser: Boolean, val text: String)

/** What the screen shows. */
data class Screen(
    val messages: List<Message> = emptyList(),
    val ready: Boolean = false,
    val answering: Boolean = false,
    val problem: String? = null,
)

/** The conversation of a screen. It has nothing of Android, so that it runs in tests, too. */
class ChatState(private val scope: CoroutineScope, private val open: suspend () -> Pair<Model, Chat>) {
    private val state = MutableStateFlow(Screen())
    private var model: Model? = null
    private var chat: Chat? = null
    private var reply: Job? = null

    val screen: StateFlow<Screen> = state.asStateFlow()

    fun load() {
        scope.launch {
            reporting {
                val (model, chat) = open()
                this@ChatState.model = model
                this@ChatState.chat = chat
                state.update { it.copy(ready = true) }
            }
        }
    }

    fun send(text: String) {
        val chat = chat ?: return
        if (state.value.answering || text.isBlank()) return
        val added = listOf(Message(fromUser = true, text), Message(fromUser = false, ""))
        state.update { it.copy(messages = it.messages + added, answering = true, problem = null) }
        reply = scope.launch {
            try {
                reporting { chat.send(text).collect(::append) }
            } finally {
                state.update { it.copy(answering = false) }
            }
        }
    }

    /** Stops the reply; what there is of it stays. */
    fun stop() {
        reply?.cancel()
    }

    fun close() {
        chat?.close()
        model?.close()
    }

    private fun append(piece: String) {
        state.update { screen ->
            val last = screen.messages.last()
            screen.copy(messages = screen.messages.dropLast(1) + last.copy(text = last.text + piece))
        }
    }

    private suspend fun reporting(work: suspend () -> Unit) {
        try {
            work()
        } catch (failure: ShohinException) {
            state.update { it.copy(problem = failure.message) }
        }
    }
}
