package rs.shohin

import java.nio.ByteBuffer
import kotlin.coroutines.cancellation.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext

/** The format of the KV cache. */
public enum class KvFormat(internal val number: Int) {
    /** [F16] */
    DEFAULT(0),
    F32(1),
    F16(2),
    Q8(3),
    Q4(4),
    FP8_E4M3(5),
    FP8_E5M2(6),
}

/** Where a model runs. */
public enum class Device(internal val number: Int) {
    /** A GPU if there is a suitable one and the library was built for it, otherwise the CPU. */
    BEST(0),
    CPU(1),
    GPU(2),
}

/**
 * Options for loading a model.
 *
 * @property threads 0: one per core
 * @property context context of a chat in tokens, clamped to the model's; 0: 4096
 */
public data class LoadOptions(
    val threads: Int = 0,
    val context: Int = 0,
    val kvFormat: KvFormat = KvFormat.DEFAULT,
    val device: Device = Device.BEST,
) {
    init {
        notNegative("threads", threads)
        notNegative("context", context)
    }
}

/**
 * Facts about a model.
 *
 * @property vocabSize tokens of the vocabulary: the length of logits
 * @property embeddingSize the length of an embedding
 * @property maxContext the longest context it supports, in tokens
 * @property context the context of its chats, in tokens
 * @property weightBytes bytes of the weights in memory
 * @property canThink whether it can reason before it answers
 * @property canCall whether it can call functions
 * @property adapters number of its adapters
 */
public data class ModelInfo(
    val vocabSize: Int,
    val embeddingSize: Int,
    val maxContext: Int,
    val context: Int,
    val weightBytes: Long,
    val threads: Int,
    val canThink: Boolean,
    val canCall: Boolean,
    val adapters: Int,
)

/**
 * An adapter (LoRA) for a model, a GGUF file that [Model.adapted] reads.
 *
 * @property scale 1 applies it as it was trained; 0 has no effect
 */
public class Adapter
private constructor(internal val file: ByteArray, internal val isInMemory: Boolean, public val scale: Float) {
    /** The adapter in a file. */
    public constructor(path: String, scale: Float = 1f) : this(path.encodeToByteArray(), false, scale)

    /** The adapter in the rest of a buffer, such as a mapped asset. The bytes are copied. */
    public constructor(
        buffer: ByteBuffer,
        scale: Float = 1f,
    ) : this(ByteArray(buffer.remaining()).also(buffer.slice()::get), true, scale)

    /** The same at another scale. */
    public fun at(scale: Float): Adapter = Adapter(file, isInMemory, scale)
}

/** A loaded model. It may be used by any number of threads. [close] frees its memory, with the last of its chats. */
public class Model private constructor(address: Long) : AutoCloseable {
    internal val handle = Handle("model", address, Native::modelFree)

    /** Facts about the model. */
    public val info: ModelInfo =
        Native.modelInfo(address).let {
            ModelInfo(
                vocabSize = it[0].toInt(),
                embeddingSize = it[1].toInt(),
                maxContext = it[2].toInt(),
                context = it[3].toInt(),
                weightBytes = it[4],
                threads = it[5].toInt(),
                canThink = it[6] != 0L,
                canCall = it[7] != 0L,
                adapters = it[8].toInt(),
            )
        }

    /**
     * Begins a conversation, with instructions for the whole of it. It does not suspend: it allocates the KV cache, and compiles the format of replies.
     */
    public fun chat(system: String? = null, options: ChatOptions = ChatOptions()): Chat {
        val chat = Chat(handle.use(Native::chatNew))
        try {
            chat.setOptions(options)
            if (system != null) chat.setSystem(system)
        } catch (failure: ShohinException) {
            chat.close()
            throw failure
        }
        return chat
    }

    /**
     * The same model with [adapters], in addition to those that it has. Both share the weights, and run side by side: it takes the memory of
     * the adapters alone. Close each, in any order. The error `option` is that of a model that runs on a GPU: load it with [Device.CPU].
     */
    public suspend fun adapted(vararg adapters: Adapter): Model = make {
        val all = ByteArray(adapters.sumOf { it.file.size })
        adapters.fold(0) { at, adapter -> at + adapter.file.size.also { adapter.file.copyInto(all, at) } }
        val lengths = IntArray(adapters.size) { adapters[it].file.size }
        val inMemory = IntArray(adapters.size) { if (adapters[it].isInMemory) 1 else 0 }
        val scales = FloatArray(adapters.size) { adapters[it].scale }
        handle.use { Native.modelAdapted(it, all, lengths, inMemory, scales) }
    }

    /** The tokens of a text, with the beginning-of-sequence token if the model uses one. It does not suspend: a long text takes long. */
    public fun tokenize(text: String): IntArray = handle.use { Native.tokenize(it, text.encodeToByteArray()) }

    /** The text of tokens, without control tokens. */
    public fun detokenize(tokens: IntArray): String = handle.use { Native.detokenize(it, tokens) }.decodeToString()

    /** The embedding of a text, of length 1: the mean of the final hidden states. */
    public suspend fun embed(text: String): FloatArray =
        computing { handle.use { Native.embed(it, text.encodeToByteArray()) } }

    /** The embeddings of several texts. */
    public suspend fun embed(texts: List<String>): List<FloatArray> = computing {
        val all = Texts(texts)
        val numbers = handle.use { Native.embedTexts(it, all.bytes, all.lengths) }
        texts.indices.map { numbers.copyOfRange(it * info.embeddingSize, (it + 1) * info.embeddingSize) }
    }

    /** The logits of the token after [tokens]. */
    public suspend fun logits(tokens: IntArray): FloatArray = computing { handle.use { Native.logits(it, tokens) } }

    /** Frees the model's memory; its chats go on until they are closed. */
    override fun close() {
        handle.close()
    }

    public companion object {
        /** The version of the native library. */
        public val version: String
            get() = Native.version().decodeToString()

        /** Loads a GGUF file, or a model in parts by the name of any of them. Do not change the file while it is in use. */
        public suspend fun load(path: String, options: LoadOptions = LoadOptions()): Model =
            load(options) { threads, context, kv, device ->
                Native.modelLoad(path.encodeToByteArray(), threads, context, kv, device)
            }

        /** Loads a GGUF file from the rest of a buffer, such as a mapped asset. The bytes are copied. */
        public suspend fun load(buffer: ByteBuffer, options: LoadOptions = LoadOptions()): Model {
            val bytes = buffer.slice()
            return load(options) { threads, context, kv, device ->
                if (bytes.isDirect) {
                    Native.modelLoadBuffer(bytes, bytes.remaining(), threads, context, kv, device)
                } else {
                    val copy = ByteArray(bytes.remaining()).also(bytes::get)
                    Native.modelLoadBytes(copy, threads, context, kv, device)
                }
            }
        }

        /** Loads the small model that is built into the library. */
        public suspend fun builtIn(options: LoadOptions = LoadOptions()): Model = load(options, Native::modelLoadBuiltIn)

        private suspend fun load(options: LoadOptions, call: (Int, Int, Int, Int) -> Long): Model = make {
            call(options.threads, options.context, options.kvFormat.number, options.device.number)
        }

        private suspend fun make(call: () -> Long): Model {
            var made: Model? = null
            try {
                return computing { Model(call()).also { made = it } }
            } catch (cancelled: CancellationException) {
                // Nobody gets a model that was made in the meantime.
                made?.close()
                throw cancelled
            }
        }
    }
}

/** Runs a call that takes long on a thread for that. */
internal suspend fun <T> computing(call: () -> T): T = withContext(Dispatchers.Default) { call() }

internal fun notNegative(name: String, number: Int) {
    if (number < 0) throw ShohinException("option", "$name is $number, expected 0 or more")
}
