package rs.shohin

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.filter
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex

/** The format of replies. */
public sealed class ReplyFormat(internal val number: Int, internal val text: String) {
    /** Any text. */
    public data object Text : ReplyFormat(0, "")

    /** A JSON object. */
    public data object JsonObject : ReplyFormat(1, "")

    /** A JSON value that matches a JSON Schema. */
    public data class JsonSchema(val schema: String) : ReplyFormat(2, schema)

    /** A text that an expression matches from beginning to end. */
    public data class Regex(val expression: String) : ReplyFormat(3, expression)

    /** A text of a grammar in GBNF. */
    public data class Grammar(val grammar: String) : ReplyFormat(4, grammar)

    /** One of these texts. */
    public data class Choice(val choices: List<String>) : ReplyFormat(5, "")
}

/** Whether a model may reason before it answers. */
public sealed class Thinking(internal val number: Int) {
    public data object Off : Thinking(0)

    public data object On : Thinking(-1)

    /** At most so many tokens. */
    public data class Limited(val tokens: Int) : Thinking(tokens) {
        init {
            notNegative("tokens of reasoning", tokens)
        }
    }
}

/** The library's defaults. */
private object Defaults {
    private val numbers = Native.chatDefaults()
    val seed = numbers[0].toLong()
    val temperature = numbers[1].toFloat()
    val topK = numbers[2].toInt()
    val topP = numbers[3].toFloat()
    val minP = numbers[4].toFloat()
    val repetitionPenalty = numbers[5].toFloat()
}

/**
 * Options of replies.
 *
 * @property seed the same seed gives the same reply, also by [Chat.retry]; 0 unless set
 * @property temperature 0 always takes the most likely token
 * @property topK keeps the most likely tokens; 0 keeps all
 * @property topP keeps the most likely tokens with this much probability together; 1 keeps all
 * @property minP keeps tokens at least this likely, relative to the most likely one; 0 keeps all
 * @property repetitionPenalty over 1, makes the last 64 tokens less likely
 * @property maxTokens of a reply; 0: only the context limits it
 * @property stop texts that end a reply, and are not part of it
 * @property tools functions that the model may call, each described by a JSON text as in OpenAI's `tools`
 * @property toolChoice `auto`, `required`, or the name of the function that must be called
 * @property describeTools whether a model whose template has no tools gets them described in the system message; otherwise they are an error with it
 * @property presencePenalty subtracted from the logits of tokens that occurred among the last 64
 * @property frequencyPenalty subtracted from them for each time that they occurred
 * @property logprobs how many of the most likely tokens, 0 to 20, are measured beside the one that was chosen; null: none is
 */
public data class ChatOptions(
    val seed: Long = Defaults.seed,
    val temperature: Float = Defaults.temperature,
    val topK: Int = Defaults.topK,
    val topP: Float = Defaults.topP,
    val minP: Float = Defaults.minP,
    val repetitionPenalty: Float = Defaults.repetitionPenalty,
    val maxTokens: Int = 0,
    val thinking: Thinking = Thinking.Off,
    val format: ReplyFormat = ReplyFormat.Text,
    val stop: List<String> = emptyList(),
    val tools: List<String> = emptyList(),
    val toolChoice: String = "auto",
    val describeTools: Boolean = false,
    val presencePenalty: Float = 0f,
    val frequencyPenalty: Float = 0f,
    val logprobs: Int? = null,
) {
    init {
        notNegative("logprobs", logprobs ?: 0)
        notNegative("topK", topK)
        notNegative("maxTokens", maxTokens)
    }
}

/** Why a reply ended. */
public enum class EndReason {
    /** The model ended it. */
    STOP,

    /** It has [ChatOptions.maxTokens] tokens. */
    LENGTH,

    /** The context is full. */
    CONTEXT_FULL,

    /** It was stopped. */
    CANCELLED,
}

/**
 * A call of a function by the model.
 *
 * @property arguments a JSON text
 */
public data class ToolCall(val name: String, val arguments: String)

/** A token and the natural logarithm of its probability. */
public data class Logprob(val token: Int, val logprob: Float)

/**
 * A token of a reply.
 *
 * @property top the most likely ones in its place, best first
 */
public data class TokenLogprob(val chosen: Logprob, val top: List<Logprob>)

/**
 * A piece of a reply: whole characters.
 *
 * @property text for the reader; may be empty
 * @property reasoning the model's reasoning
 * @property token that the model chose
 * @property reason why the reply ended with this piece
 * @property toolCalls calls that are now complete; answer them with [Chat.sendResults]
 * @property logprobs tokens whose text is now complete, if [ChatOptions.logprobs] asks for them; none of those that a stop text cut off
 */
public data class Piece(
    val text: String,
    val reasoning: String,
    val token: Int?,
    val reason: EndReason?,
    val toolCalls: List<ToolCall>,
    val logprobs: List<TokenLogprob> = emptyList(),
)

/**
 * Of the last reply.
 *
 * @property cachedTokens prompt tokens that were in the KV cache
 * @property promptSeconds to the first token
 * @property replySeconds from the first token to the end
 * @property position tokens that the KV cache holds
 * @property capacity most tokens that fit into it
 * @property guessesChecked of [Chat.speculate], in the whole conversation
 */
public data class Usage(
    val promptTokens: Int,
    val cachedTokens: Int,
    val replyTokens: Int,
    val promptSeconds: Double,
    val replySeconds: Double,
    val position: Int,
    val capacity: Int,
    val guessesChecked: Int,
    val guessesRight: Int,
)

/**
 * A conversation, with its own KV cache. When the context is full, the oldest exchanges are left out.
 *
 * A chat does one thing at a time: during a reply other calls throw `busy`. Close it when it is not used any more: it
 * takes much memory.
 */
public class Chat internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle("chat", address, Native::chatFree, Native::chatInterrupt)
    private val inUse = Mutex()

    /** Sends a message when the flow is collected; the texts of the reply. Leaving the flow stops the reply. */
    public fun send(text: String): Flow<String> = texts(reply(text))

    /** As [send], with everything that a piece has. */
    public fun reply(text: String): Flow<Piece> = pieces { Native.chatSend(it, text.encodeToByteArray()) }

    /** Sends a message; the whole reply as one text. */
    public suspend fun ask(text: String): String {
        val reply = StringBuilder()
        send(text).collect { reply.append(it) }
        return reply.toString()
    }

    /** The messages so far: a JSON text, an array as in OpenAI's API. */
    public val messages: String
        get() = alone(Native::chatMessages).decodeToString()

    /** Starts over with the messages of another conversation, in the form of [messages]. */
    public fun setMessages(messages: String): Unit = alone { Native.chatSetMessages(it, messages.encodeToByteArray()) }

    /** Sends messages in the form of [messages]. */
    public fun sendMessages(messages: String): Flow<Piece> = pieces { Native.chatSendMessages(it, messages.encodeToByteArray()) }

    /**
     * The answer to a request in the form of OpenAI's chat completions, a JSON text: the whole of it, or with `"stream": true` its chunks. The
     * messages of the request take the place of those of the chat, whose options stay as they are.
     */
    public fun answer(request: String): Flow<String> =
        computed({ Native.chatRequest(it, request.encodeToByteArray()) }) { Native.chatNextAnswer(it)?.decodeToString() }

    /** Sends what the functions returned that the last reply called, one text for each call. */
    public fun sendResults(results: List<String>): Flow<Piece> = pieces {
        val texts = Texts(results)
        Native.chatSendResults(it, texts.bytes, texts.lengths)
    }

    /**
     * Another reply to the last message, in the place of the last one: the same unless the options have changed, such as the seed.
     * A message whose reply ended before any text was not kept, and is the error `argument`: send it again.
     */
    public fun retry(): Flow<Piece> = pieces { Native.chatRetry(it) }

    /** Continues tokens as plain text; the conversation stays as it is. */
    public fun complete(tokens: IntArray): Flow<String> = texts(pieces { Native.chatComplete(it, tokens) })

    /**
     * Sets the options of the next replies. Numbers out of range are reported by the next reply. It does not suspend, and compiles the format:
     * a large schema or grammar takes long.
     */
    public fun setOptions(options: ChatOptions): Unit = alone {
        val stop = Texts(options.stop)
        val tools = Texts(options.tools)
        val choices = Texts((options.format as? ReplyFormat.Choice)?.choices.orEmpty())
        Native.chatSetOptions(
            it,
            options.seed,
            options.temperature,
            options.topK,
            options.topP,
            options.minP,
            options.repetitionPenalty,
            options.maxTokens,
            options.thinking.number,
            options.format.number,
            options.format.text.encodeToByteArray(),
            stop.bytes,
            stop.lengths,
            tools.bytes,
            tools.lengths,
            options.toolChoice.encodeToByteArray(),
            options.presencePenalty,
            options.frequencyPenalty,
            options.logprobs ?: -1,
            if (options.describeTools) 1 else 0,
            choices.bytes,
            choices.lengths,
        )
    }

    /** Starts over, with these instructions for the whole conversation. */
    public fun setSystem(text: String): Unit = alone { Native.chatSystem(it, text.encodeToByteArray()) }

    /**
     * Decodes with guesses from now on: the same replies (on a GPU but for near ties), faster where guesses are right. They come
     * from [draft], a smaller model with the same vocabulary, or, without it, from what followed the last tokens where they
     * occurred before.
     */
    public suspend fun speculate(draft: Model? = null): Unit = computing {
        alone { chat ->
            if (draft == null) Native.chatSpeculate(chat, 0) else draft.handle.use { Native.chatSpeculate(chat, it) }
        }
    }

    /** Token counts and times of the last reply; `busy` while it is in progress. */
    public val usage: Usage
        get() = alone(Native::chatUsage).let {
            Usage(
                promptTokens = it[0].toInt(),
                cachedTokens = it[1].toInt(),
                replyTokens = it[2].toInt(),
                promptSeconds = it[3],
                replySeconds = it[4],
                position = it[5].toInt(),
                capacity = it[6].toInt(),
                guessesChecked = it[7].toInt(),
                guessesRight = it[8].toInt(),
            )
        }

    /** Writes the conversation to a file, with the keys and values of its tokens. */
    public suspend fun save(path: String): Unit =
        computing { alone { Native.chatSave(it, path.encodeToByteArray()) } }

    /** Goes on with the conversation of such a file. The model and its `kvFormat` must be the same. */
    public suspend fun open(path: String): Unit =
        computing { alone { Native.chatOpen(it, path.encodeToByteArray()) } }

    /** Ends the reply in progress, if any, and frees the chat's memory. */
    override fun close() {
        handle.close()
    }

    private fun texts(pieces: Flow<Piece>): Flow<String> = pieces.map { it.text }.filter { it.isNotEmpty() }

    /** The pieces of the reply that [begin] begins. */
    private fun pieces(begin: (Long) -> Unit): Flow<Piece> = computed(begin, ::next)

    /** What [next] computes until it is null. */
    private fun <T : Any> computed(begin: (Long) -> Unit, next: (Long) -> T?): Flow<T> =
        flow {
            alone { chat ->
                interrupting(chat) {
                    begin(chat)
                    try {
                        while (!handle.closed) {
                            currentCoroutineContext().ensureActive()
                            emit(next(chat) ?: break)
                        }
                    } finally {
                        Native.chatStop(chat)
                    }
                }
            }
        }.buffer(Channel.RENDEZVOUS).flowOn(Dispatchers.Default)

    /** While [work] runs, cancellation ends a call that computes, which may be at a long prompt. */
    private suspend fun interrupting(chat: Long, work: suspend () -> Unit): Unit = coroutineScope {
        val watch = launch(Dispatchers.Unconfined) {
            try {
                awaitCancellation()
            } finally {
                Native.chatInterrupt(chat)
            }
        }
        work()
        watch.cancel()
    }

    private fun next(chat: Long): Piece? {
        val numbers = IntArray(5)
        val bytes = Native.chatNext(chat, numbers) ?: return null
        val (text, reasoning, token, reason, measured) = numbers
        val end = bytes.size - measured
        return Piece(
            bytes.decodeToString(0, text),
            bytes.decodeToString(text, text + reasoning),
            token.takeIf { it >= 0 },
            EndReason.entries.getOrNull(reason - 1),
            bytes.decodeToString(text + reasoning, end).split('\u0000').dropLast(1).chunked(2) { (name, arguments) ->
                ToolCall(name, arguments)
            },
            logprobs(ByteBuffer.wrap(bytes, end, measured).order(ByteOrder.LITTLE_ENDIAN)),
        )
    }

    private fun logprobs(numbers: ByteBuffer): List<TokenLogprob> = buildList {
        fun one() = Logprob(numbers.getInt(), numbers.getFloat())
        while (numbers.hasRemaining()) {
            val chosen = one()
            add(TokenLogprob(chosen, List(numbers.getInt()) { one() }))
        }
    }

    private inline fun <T> alone(call: (Long) -> T): T {
        if (!inUse.tryLock()) throw ShohinException("busy", "the chat is in use: its last reply has not ended")
        try {
            return handle.use(call)
        } finally {
            inUse.unlock()
        }
    }
}

/** Several texts as one array of bytes. */
internal class Texts(texts: List<String>) {
    private val all = texts.map { it.encodeToByteArray() }
    val bytes: ByteArray = all.fold(ByteArray(0)) { before, text -> before + text }
    val lengths: IntArray = IntArray(all.size) { all[it].size }
}
