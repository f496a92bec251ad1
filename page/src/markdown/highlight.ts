// Colours for code, the same for every language: comments, strings, numbers, words that most languages keep.

export type Shade = "comment" | "string" | "number" | "keyword" | "plain";

const KEYWORDS = new Set(
  (
    "abstract and as assert async await break case catch class const continue def default defer del do elif else end enum except export " +
    "extends false final finally fn for from func function if impl implements import in interface is lambda let match mod module mut new " +
    "nil none not null or package pass private protected pub public raise return self static struct super switch this throw true try type " +
    "typeof undefined union unsafe use var void when where while with yield None True False"
  ).split(" "),
);
const HASH_COMMENTS =
  /^(?:py|python|sh|bash|shell|zsh|rb|ruby|ya?ml|toml|ini|conf|dockerfile|make|makefile|r|pl|perl)?$/i;
const TOKENS =
  /(\/\*[\s\S]*?(?:\*\/|$)|\/\/[^\n]*|<!--[\s\S]*?(?:-->|$))|(#[^\n]*)|("""[\s\S]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;
const LONGEST = 20_000; // characters; more is shown in one colour

/** The parts of a text in order; together they are the text. */
export function highlight(text: string, language: string): { readonly shade: Shade; readonly text: string }[] {
  if (text.length > LONGEST || /^(?:text|txt|plain|console|output|md|markdown|diff)$/i.test(language))
    return [{ shade: "plain", text }];
  const hashes = HASH_COMMENTS.test(language);
  const parts: { shade: Shade; text: string }[] = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    const shade = shadeOf(match, hashes);
    if (shade === "plain") continue;
    if (match.index > end) parts.push({ shade: "plain", text: text.slice(end, match.index) });
    parts.push({ shade, text: match[0] });
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push({ shade: "plain", text: text.slice(end) });
  return parts;
}

function shadeOf([whole, comment, hash, quoted, number]: RegExpMatchArray, hashes: boolean): Shade {
  if (comment !== undefined) return "comment";
  if (hash !== undefined) return hashes ? "comment" : "plain";
  if (quoted !== undefined) return "string";
  if (number !== undefined) return "number";
  return KEYWORDS.has(whole) ? "keyword" : "plain";
}
