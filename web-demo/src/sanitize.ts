// The harmless part of HTML: DOMPurify with what Markdown needs.
import DOMPurify from "dompurify";

/** Elements that may be written as HTML, without attributes. Other markup is shown as text. */
export const WRITABLE = "b|br|del|em|i|ins|kbd|mark|q|s|small|strong|sub|sup|u|var";

const SANITIZER = {
  ALLOWED_TAGS: [
    ...WRITABLE.split("|"),
    ...["a", "blockquote", "code", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre", "span", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "href", "start", "type"],
  ADD_URI_SAFE_ATTR: ["align", "checked", "start", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
} as const;

/** The harmless part of an HTML text as elements. */
export function sanitize(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, SANITIZER as unknown as Parameters<typeof DOMPurify.sanitize>[1] & { RETURN_DOM_FRAGMENT: true });
}
