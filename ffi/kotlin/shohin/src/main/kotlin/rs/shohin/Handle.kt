package rs.shohin

/** An address of the native library. It is freed when it is closed and no call uses it. */
internal class Handle(
    private val name: String,
    address: Long,
    private val free: (Long) -> Unit,
    private val interrupt: (Long) -> Unit = {},
) {
    private var address = address
    private var calls = 0

    var closed = false
        @Synchronized get
        private set

    inline fun <T> use(call: (Long) -> T): T {
        val address = acquire()
        try {
            return call(address)
        } finally {
            release()
        }
    }

    @Synchronized
    fun acquire(): Long {
        if (closed) throw ShohinException("handle", "the $name was closed")
        calls++
        return address
    }

    @Synchronized
    fun release() {
        calls--
        freeIfUnused()
    }

    @Synchronized
    fun close() {
        if (!closed && calls > 0) interrupt(address)
        closed = true
        freeIfUnused()
    }

    private fun freeIfUnused() {
        if (!closed || calls > 0 || address == 0L) return
        free(address)
        address = 0
    }
}
