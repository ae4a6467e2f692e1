package rs.shohin

import java.io.File
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import kotlin.time.measureTime
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import rs.shohin.sample.ChatState

private val MODEL = System.getenv("SHOHIN_MODEL")
private const val MESSAGE = "What does a cow say?"
private val GREEDY = ChatOptions(temperature = 0f, maxTokens = 40)

private fun <T> equal(found: T, expected: T) {
    if (found != expected) throw AssertionError("found $found, expected $expected")
}

private fun isTrue(condition: Boolean, what: () -> String) {
    if (!condition) throw AssertionError(what())
}

private suspend fun fails(code: String, call: suspend () -> Unit) {
    val failure = runCatching { call() }.exceptionOrNull()
    isTrue(failure is ShohinException && failure.code == code && !failure.message.isNullOrEmpty()) {
        "expected the error $code, found $failure"
    }
}

private suspend fun Chat.text(message: String): String = send(message).toList().joinToString("")

/** The tests, by name. */
private val TESTS: Map<String, suspend (Model) -> Unit> =
    mapOf(
        "the reply is that of Rust" to { model ->
            model.chat(options = GREEDY).use { chat ->
                val pieces = chat.send(MESSAGE).toList()
                isTrue(pieces.size > 1) { "one piece" }
                equal(pieces.joinToString(""), System.getenv("SHOHIN_REPLY"))
                equal(chat.retry().toList().joinToString("") { it.text }, System.getenv("SHOHIN_REPLY"))
                isTrue(chat.usage.replyTokens > 1 && chat.usage.capacity > chat.usage.position) { "${chat.usage}" }
            }
            // The defaults are the library's.
            model.chat().use { equal(it.text(MESSAGE), System.getenv("SHOHIN_DEFAULT_REPLY")) }
        },
        "the built-in model answers as its trainer's program" to {
            Model.builtIn(LoadOptions(threads = 1, kvFormat = KvFormat.F32, device = Device.CPU)).use { model ->
                model.chat(options = GREEDY).use { equal(it.text("What is 3 plus 4?"), "3 plus 4 is 7.") }
            }
        },
        "models in memory" to {
            RandomAccessFile(MODEL, "r").use { file ->
                val mapped = file.channel.map(FileChannel.MapMode.READ_ONLY, 0, file.length())
                val shifted = ByteBuffer.allocateDirect(mapped.limit() + 3).position(3).put(mapped).position(3)
                val heap = ByteBuffer.wrap(File(MODEL).readBytes())
                for (buffer in listOf(mapped.rewind(), shifted, heap)) {
                    Model.load(buffer as ByteBuffer).use { model ->
                        model.chat(options = GREEDY).use { equal(it.text(MESSAGE), System.getenv("SHOHIN_REPLY")) }
                    }
                }
            }
            fails("malformed") { Model.load(ByteBuffer.wrap("not a model".toByteArray())) }
            fails("truncated") { Model.load(ByteBuffer.allocateDirect(0)) }
        },
        "tokens, embeddings and logits" to { model ->
            for (text in listOf("", "a cow says moo", "é 🐄 \u0000", "a cow says moo ".repeat(100))) {
                equal(model.detokenize(model.tokenize(text)), text)
            }
            val vector = model.embed("cow")
            equal(vector.size, model.info.embeddingSize)
            isTrue(Math.abs(vector.sumOf { it.toDouble() * it } - 1) < 1e-3) { "not of length 1" }
            val vectors = model.embed(listOf("dog", "cow"))
            equal(vectors.map { it.size }, listOf(vector.size, vector.size))
            isTrue(vectors[1].contentEquals(vector) && !vectors[0].contentEquals(vector)) { "not the vectors of the texts" }
            equal(model.embed(emptyList()), emptyList())
            val logits = model.logits(model.tokenize("The cow"))
            equal(logits.size, model.info.vocabSize)
            model.chat(options = GREEDY.copy(maxTokens = 1)).use { chat ->
                val first = chat.complete(model.tokenize("The cow")).toList().joinToString("")
                equal(first, model.detokenize(intArrayOf(logits.indices.maxBy { logits[it] })))
            }
        },
        "errors have codes" to { model ->
            fails("io") { Model.load("no such file.gguf") }
            fails("not_a_file") { Model.load("/") }
            fails("token") { model.detokenize(intArrayOf(-1)) }
            fails("option") { ChatOptions(topK = -1) }
            fails("option") { LoadOptions(threads = -1) }
            fails("malformed") { model.chat(options = ChatOptions(format = ReplyFormat.JsonSchema("{"))) }
            model.chat(options = ChatOptions(temperature = -1f)).use { chat ->
                fails("option") { chat.send(MESSAGE).collect() }
                chat.setOptions(GREEDY)
                equal(chat.text(MESSAGE), System.getenv("SHOHIN_REPLY"))
                fails("snapshot_foreign") { chat.open(MODEL) }
            }
        },
        "adapters join a model" to { model ->
            val file = System.getenv("SHOHIN_ADAPTER")
            val tokens = intArrayOf(1, 2, 3)
            suspend fun logits(vararg adapters: Adapter) = model.adapted(*adapters).use { it.logits(tokens).toList() }
            val plain = model.logits(tokens).toList()
            equal(logits(), plain)
            equal(logits(Adapter(file, scale = 0f)), plain)
            val adapter = Adapter(file)
            val half = logits(adapter.at(0.5f))
            isTrue(half != plain) { "the adapter has no effect" }
            val buffer = ByteBuffer.allocateDirect(File(file).length().toInt() + 3).position(3)
            buffer.put(File(file).readBytes()).position(3)
            equal(logits(Adapter(buffer, 0.5f)), half)
            equal(buffer.position(), 3)
            model.adapted(Adapter(file, 0.25f), Adapter(ByteBuffer.wrap(File(file).readBytes()), -0.5f)).use { both ->
                equal(listOf(model.info.adapters, both.info.adapters), listOf(0, 2))
                isTrue(both.logits(tokens).toList() !in listOf(plain, half)) { "one of two adapters" }
                both.adapted(adapter).use { equal(it.info.adapters, 3) }
                both.chat(options = GREEDY).use { isTrue(it.text(MESSAGE).isNotEmpty()) { "no reply" } }
            }
            equal(model.logits(tokens).toList(), plain)
            // It outlives the model that it was made of.
            val adapted = Model.load(MODEL).use { it.adapted(adapter.at(0.5f)) }
            adapted.use { equal(it.logits(tokens).toList(), half) }
            fails("handle") { adapted.adapted(adapter) }
            fails("io") { model.adapted(adapter, Adapter("no such file.gguf")) }
            fails("truncated") { model.adapted(Adapter(ByteBuffer.allocate(0))) }
            Model.load(System.getenv("SHOHIN_TOOLS")).use { other ->
                isTrue(runCatching { other.adapted(adapter) }.exceptionOrNull() is ShohinException) { "it fits another model" }
            }
        },
        "leaving a flow stops the reply" to { model ->
            model.chat(options = GREEDY).use { chat ->
                val began = chat.send(MESSAGE).take(2).toList()
                equal(began.size, 2)
                isTrue(System.getenv("SHOHIN_REPLY").startsWith(began.joinToString(""))) { "$began" }
                isTrue(chat.usage.replyTokens < 40) { "${chat.usage}" }
                isTrue(chat.text("And a dog?").isNotEmpty()) { "no reply after that" }
            }
        },
        "cancelling a coroutine stops the reply" to { model ->
            // So random that it does not end by itself soon.
            val wild = ChatOptions(temperature = 50f, topK = 0, topP = 1f, maxTokens = 100_000)
            model.chat(options = wild).use { chat ->
                var pieces = 0
                val job = BACKGROUND.launch { chat.send(MESSAGE).collect { pieces++ } }
                while (pieces < 3) delay(1)
                job.cancelAndJoin()
                val held = pieces
                isTrue(chat.usage.position > 0) { "it is still in use" }
                delay(20)
                equal(pieces, held)
            }
        },
        "cancelling ends the computation of a prompt" to {
            Model.load(System.getenv("SHOHIN_TOOLS")).use { model ->
                var long = "moo "
                while (model.tokenize(long).size < 1500) long += "moo "
                model.chat().use { chat ->
                    val whole = measureTime { chat.send(long).first() }
                    val position = chat.usage.position
                    // Another time if it came too late.
                    val cut = (1..20).any {
                        chat.setSystem("Number $it")
                        val job = BACKGROUND.launch { chat.send(long).collect() }
                        delay(whole / 4)
                        job.cancelAndJoin()
                        chat.usage.position in 1..<position
                    }
                    isTrue(cut) { "never less than the whole prompt was computed" }
                }
            }
        },
        "functions are called" to {
            val add =
                """{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}"""
            val options = ChatOptions(temperature = 50f, maxTokens = 150, tools = listOf(add), toolChoice = "required")
            Model.load(System.getenv("SHOHIN_TOOLS")).use { model ->
                isTrue(model.info.canCall) { "${model.info}" }
                model.chat(options = options).use { chat ->
                    val calls = chat.reply("Add!").toList().flatMap { it.toolCalls }
                    isTrue(calls.isNotEmpty() && calls.all { it.name == "add" && "\"a\"" in it.arguments }) { "$calls" }
                    chat.setOptions(options.copy(toolChoice = "auto"))
                    isTrue(chat.sendResults(calls.map { "true" }).take(2).toList().isNotEmpty()) { "no reply" }
                    fails("argument") { chat.sendResults(emptyList()).collect() }
                    fails("argument") { chat.setOptions(options.copy(toolChoice = "sub")) }
                }
            }
        },
        "stop texts and guesses" to { model ->
            val reply = System.getenv("SHOHIN_REPLY")
            model.chat(options = GREEDY.copy(stop = listOf("never", reply.substring(3, 8)))).use { chat ->
                equal(chat.text(MESSAGE), reply.substring(0, 3))
            }
            model.chat(options = GREEDY).use { chat ->
                chat.speculate(draft = model)
                equal(chat.text(MESSAGE), reply)
                isTrue(chat.usage.guessesRight > 0) { "${chat.usage}" }
                chat.speculate()
                equal(chat.text(MESSAGE).isEmpty(), false)
            }
        },
        "a chat does one thing at a time" to { model ->
            model.chat(options = GREEDY).use { chat ->
                chat.send(MESSAGE).take(1).collect {
                    fails("busy") { chat.send(MESSAGE).first() }
                    fails("busy") { chat.setOptions(GREEDY) }
                }
                chat.setSystem("You are a farmer.")
                isTrue(chat.text(MESSAGE).isNotEmpty()) { "no reply" }
            }
        },
        "formats and reasons" to { model ->
            val options = GREEDY.copy(format = ReplyFormat.Regex("(cow|dog)s?"))
            model.chat(options = options).use { chat ->
                val pieces = chat.reply(MESSAGE).toList()
                isTrue(Regex("(cow|dog)s?").matches(pieces.joinToString("") { it.text })) { "$pieces" }
                equal(pieces.map { it.reason }.last(), EndReason.STOP)
                equal(pieces.dropLast(1).mapNotNull { it.reason }, emptyList())
                chat.setOptions(GREEDY.copy(maxTokens = 2))
                equal(chat.reply(MESSAGE).toList().last().reason, EndReason.LENGTH)
            }
        },
        "choices, penalties, log-probabilities and described tools" to { model ->
            model.chat(options = GREEDY.copy(format = ReplyFormat.Choice(listOf("moo", "woof")))).use { chat ->
                isTrue(chat.ask(MESSAGE) in listOf("moo", "woof")) { "another reply" }
                chat.setOptions(GREEDY.copy(logprobs = 2))
                val measured = chat.retry().toList().flatMap { it.logprobs }
                equal(model.detokenize(IntArray(measured.size) { measured[it].chosen.token }), System.getenv("SHOHIN_REPLY"))
                isTrue(measured.all { it.top.size == 2 && it.top[0] == it.chosen && it.chosen.logprob <= 0 }) { "$measured" }
                chat.setSystem("")
                chat.setOptions(GREEDY)
                val plain = chat.ask("Tell me a story.")
                chat.setOptions(GREEDY.copy(presencePenalty = 2f, frequencyPenalty = 2f))
                isTrue(chat.retry().toList().joinToString("") { it.text } != plain) { "penalties have no effect" }
                val tools = GREEDY.copy(tools = listOf("{\"name\": \"moo\"}"), toolChoice = "required", maxTokens = 200)
                chat.setOptions(tools)
                fails("unsupported") { chat.ask(MESSAGE) }
                chat.setOptions(tools.copy(describeTools = true))
                equal(chat.reply(MESSAGE).toList().flatMap { it.toolCalls }.map { it.name }.toSet(), setOf("moo"))
            }
            fails("option") { ChatOptions(logprobs = -1) }
            fails("option") { model.chat(options = ChatOptions(logprobs = 21)) }
        },
        "messages and requests" to { model ->
            val history =
                """[{"role":"system","content":"You are a farmer."},{"role":"user","content":"Hi!"},{"role":"assistant","content":"Hello!"}]"""
            val json = """[{"role": "user", "content": "$MESSAGE"}]"""
            model.chat(options = GREEDY).use { chat ->
                equal(chat.messages, "[]")
                chat.setMessages(history)
                equal(chat.messages, history)
                val reply = chat.ask(MESSAGE)
                chat.setMessages(history)
                equal(chat.sendMessages(json).toList().joinToString("") { it.text }, reply)
                fails("argument") { chat.setMessages("""[{"role": "cow"}]""") }
                val whole = chat.answer("""{"temperature": 0, "messages": $json}""").toList()
                isTrue(whole.size == 1 && "\"content\":\"${System.getenv("SHOHIN_REPLY")}\"" in whole[0]) { "$whole" }
                val chunks = chat.answer("""{"temperature": 0, "stream": true, "messages": $json}""").toList()
                isTrue(chunks.size > 3 && chunks.all { "chat.completion.chunk" in it }) { "$chunks" }
                fails("argument") { chat.answer("{}").collect() }
            }
        },
        "a session goes on" to { model ->
            val file = File.createTempFile("shohin", ".session")
            model.chat(options = GREEDY).use { first ->
                model.chat(options = GREEDY).use { second ->
                    first.text(MESSAGE)
                    first.save(file.path)
                    second.open(file.path)
                    equal(second.text("And a dog?"), first.text("And a dog?"))
                    isTrue(second.usage.cachedTokens > 0) { "${second.usage}" }
                }
            }
            file.delete()
        },
        "threads share a model" to { model ->
            val replies = withContext(Dispatchers.Default) {
                List(4) { async { model.chat(options = GREEDY).use { it.text(MESSAGE) } } }.awaitAll()
            }
            equal(replies.toSet(), setOf(System.getenv("SHOHIN_REPLY")))
        },
        "closed handles are errors" to {
            val model = Model.load(MODEL)
            val chat = model.chat(options = GREEDY)
            model.close()
            model.close()
            fails("handle") { model.tokenize("cow") }
            fails("handle") { model.chat() }
            equal(chat.text(MESSAGE), System.getenv("SHOHIN_REPLY"))
            // In the middle of a reply.
            val pieces = chat.send(MESSAGE)
            var seen = 0
            pieces.collect { if (++seen == 2) chat.close() }
            isTrue(seen < 6) { "$seen pieces of a closed chat" }
            fails("handle") { chat.send(MESSAGE).collect() }
            fails("handle") { chat.usage }
        },
        "the sample's screen state" to {
            runBlocking {
                val state = ChatState(this) { Model.load(MODEL).let { it to it.chat(options = GREEDY) } }
                state.load()
                state.screen.first { it.ready }
                state.send(MESSAGE)
                val done = state.screen.first { it.messages.size == 2 && !it.answering }
                equal(done.messages.map { it.text }, listOf(MESSAGE, System.getenv("SHOHIN_REPLY")))
                state.send(MESSAGE)
                state.screen.first { it.messages.size == 4 && it.messages[3].text.isNotEmpty() }
                state.stop()
                state.screen.first { !it.answering }
                state.close()
                val broken = ChatState(this) { throw ShohinException("io", "no such file") }
                broken.load()
                equal(broken.screen.first { it.problem != null }.problem, "no such file")
            }
        },
    )

private val BACKGROUND = CoroutineScope(Dispatchers.Default)

/** Runs the tests and prints their number. */
public fun main() {
    runBlocking {
        Model.load(MODEL).use { model ->
            for ((name, test) in TESTS) {
                test(model)
                println("test $name ... ok")
            }
        }
        println("${TESTS.size} tests passed with version ${Model.version}")
    }
}
