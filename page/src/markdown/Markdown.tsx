import type { ComponentChildren, VNode } from "preact";
import { useMemo } from "preact/hooks";
import { memo } from "../ui/memo";
import { CopyButton } from "../ui/CopyButton";
import { highlight } from "./highlight";
import { type Block, type Inline, parse, pieces } from "./parse";

/** A text of an agent. While it grows, only its last piece is parsed again. */
export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {pieces(text).map((piece, at) => (
        <Piece key={at} text={piece} />
      ))}
    </div>
  );
}

const Piece = memo(({ text }: { text: string }) => <>{useMemo(() => parse(text), [text]).map(drawBlock)}</>);

function drawBlock(block: Block): VNode {
  switch (block.kind) {
    case "paragraph":
      return <p>{block.inlines.map(drawInline)}</p>;
    case "heading":
      return <p class={`heading level-${Math.min(block.level, 4)}`}>{block.inlines.map(drawInline)}</p>; // a part of a message, not of the page
    case "code":
      return <Code text={block.text} language={block.language} />;
    case "list":
      return block.ordered ? <ol start={block.start}>{drawItems(block.items)}</ol> : <ul>{drawItems(block.items)}</ul>;
    case "quote":
      return <blockquote>{block.blocks.map(drawBlock)}</blockquote>;
    case "table":
      return (
        <div class="wide" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead>
              <tr>
                {block.head.map((cell) => (
                  <th>{cell.map(drawInline)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {block.rows.map((row) => (
                <tr>
                  {row.map((cell) => (
                    <td>{cell.map(drawInline)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    case "rule":
      return <hr />;
  }
}

function drawItems(items: readonly (readonly Block[])[]): VNode[] {
  return items.map((blocks) => (
    <li>
      {blocks.length === 1 && blocks[0]?.kind === "paragraph"
        ? blocks[0].inlines.map(drawInline)
        : blocks.map(drawBlock)}
    </li>
  ));
}

function drawInline(inline: Inline): ComponentChildren {
  switch (inline.kind) {
    case "text":
      return inline.text;
    case "code":
      return <code>{inline.text}</code>;
    case "link":
      return (
        <a href={inline.href} target="_blank" rel="noopener noreferrer">
          {inline.inlines.map(drawInline)}
        </a>
      );
    default: {
      const Tag = inline.kind;
      return <Tag>{inline.inlines.map(drawInline)}</Tag>;
    }
  }
}

/** Code with colours, and a button that copies it. */
export function Code({ text, language }: { text: string; language: string }) {
  const parts = useMemo(() => highlight(text, language), [text, language]);
  return (
    <div class="code">
      <pre tabIndex={0}>
        <code>
          {parts.map((part) =>
            part.shade === "plain" ? part.text : <span class={`shade-${part.shade}`}>{part.text}</span>,
          )}
        </code>
      </pre>
      <CopyButton text={text} label="Copy code" />
    </div>
  );
}
