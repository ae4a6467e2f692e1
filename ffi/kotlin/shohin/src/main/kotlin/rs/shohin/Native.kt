package rs.shohin

import java.nio.ByteBuffer

/** The native methods, in `ffi/kotlin/bridge`. Texts are UTF-8. They throw [ShohinException]. */
internal object Native {
    init {
        System.loadLibrary("shohin_jni")
    }

    @JvmStatic external fun version(): ByteArray

    @JvmStatic external fun modelLoad(path: ByteArray, threads: Int, context: Int, kvFormat: Int, device: Int): Long

    @JvmStatic external fun modelLoadBytes(bytes: ByteArray, threads: Int, context: Int, kvFormat: Int, device: Int): Long

    @JvmStatic external fun modelLoadBuffer(
        buffer: ByteBuffer,
        len: Int,
        threads: Int,
        context: Int,
        kvFormat: Int,
        device: Int,
    ): Long

    @JvmStatic external fun modelLoadBuiltIn(threads: Int, context: Int, kvFormat: Int, device: Int): Long

    @JvmStatic external fun modelAdapted(
        model: Long,
        files: ByteArray,
        lengths: IntArray,
        inMemory: IntArray,
        scales: FloatArray,
    ): Long

    @JvmStatic external fun modelFree(model: Long)

    @JvmStatic external fun modelInfo(model: Long): LongArray

    @JvmStatic external fun tokenize(model: Long, text: ByteArray): IntArray

    @JvmStatic external fun detokenize(model: Long, tokens: IntArray): ByteArray

    @JvmStatic external fun embed(model: Long, text: ByteArray): FloatArray

    @JvmStatic external fun embedTexts(model: Long, texts: ByteArray, lengths: IntArray): FloatArray

    @JvmStatic external fun logits(model: Long, tokens: IntArray): FloatArray

    @JvmStatic external fun chatDefaults(): DoubleArray

    @JvmStatic external fun chatNew(model: Long): Long

    @JvmStatic external fun chatFree(chat: Long)

    @JvmStatic external fun chatSetOptions(
        chat: Long,
        seed: Long,
        temperature: Float,
        topK: Int,
        topP: Float,
        minP: Float,
        repetitionPenalty: Float,
        maxTokens: Int,
        thinking: Int,
        format: Int,
        formatText: ByteArray,
        stop: ByteArray,
        stopLengths: IntArray,
        tools: ByteArray,
        toolLengths: IntArray,
        toolChoice: ByteArray,
        presencePenalty: Float,
        frequencyPenalty: Float,
        logprobs: Int,
        describeTools: Int,
        choices: ByteArray,
        choiceLengths: IntArray,
    )

    @JvmStatic external fun chatSystem(chat: Long, text: ByteArray)

    @JvmStatic external fun chatSend(chat: Long, text: ByteArray)

    @JvmStatic external fun chatSetMessages(chat: Long, messages: ByteArray)

    @JvmStatic external fun chatMessages(chat: Long): ByteArray

    @JvmStatic external fun chatSendMessages(chat: Long, messages: ByteArray)

    @JvmStatic external fun chatRequest(chat: Long, request: ByteArray)

    @JvmStatic external fun chatNextAnswer(chat: Long): ByteArray?

    @JvmStatic external fun chatSendResults(chat: Long, results: ByteArray, lengths: IntArray)

    @JvmStatic external fun chatRetry(chat: Long)

    @JvmStatic external fun chatSpeculate(chat: Long, draft: Long)

    @JvmStatic external fun chatComplete(chat: Long, tokens: IntArray)

    @JvmStatic external fun chatNext(chat: Long, numbers: IntArray): ByteArray?

    @JvmStatic external fun chatStop(chat: Long)

    @JvmStatic external fun chatInterrupt(chat: Long)

    @JvmStatic external fun chatUsage(chat: Long): DoubleArray

    @JvmStatic external fun chatSave(chat: Long, path: ByteArray)

    @JvmStatic external fun chatOpen(chat: Long, path: ByteArray)
}
