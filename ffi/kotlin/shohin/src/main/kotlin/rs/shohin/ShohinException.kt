package rs.shohin

/**
 * A call failed.
 *
 * @property code its stable name, such as `context_full`; the names are those of `shohin_code_name` in `shohin.h`.
 */
public class ShohinException(public val code: String, message: String) : RuntimeException(message)
