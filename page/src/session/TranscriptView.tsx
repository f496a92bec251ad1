import { useComputed, useSignal, useSignalEffect } from "@preact/signals";
import { Fragment, type RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { SessionStore } from "../stores/session";
import type { Chunk } from "../stores/transcript";
import type { Starts } from "../stores/starts";
import { MessageView } from "./MessageView";
import { StartLine } from "./StartLine";
import { usePlace } from "./place";

const PINNED_PX = 48;
const LOAD_PX = 1200;
const DRAW_PX = 2500;
/** How high a message is taken to be until it is drawn. */
const ENTRY_PX = 40;
/** Messages. */
const WORTH_A_WORD = 600;

interface Properties {
  readonly store: SessionStore;
  readonly starts: Starts;
  readonly agent: string;
  readonly place: number | undefined;
}

/** The transcript: newest at the bottom, where the view stays until somebody scrolls up; older pages come on the way. */
export function TranscriptView({ store, starts, agent, place }: Properties) {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const chunks = store.transcript.chunks.value;
  const end = useEnd(scroller, content);
  const loadIfNear = () => {
    const view = scroller.current;
    if (view && view.scrollTop < LOAD_PX && store.hasEarlier.peek()) void store.loadEarlier();
  };
  const scrolled = () => {
    end.scrolled();
    loadIfNear();
  };
  useKeepPlace(scroller, chunks[0]?.key, end.isPinned);
  useEffect(loadIfNear, [chunks]);
  useNewMessages(store, end.grew);
  usePlace(store, scroller, place, end.leave);

  return (
    <div class="transcript-frame">
      <div
        class="transcript"
        ref={scroller}
        onScroll={scrolled}
        tabIndex={0}
        role="log"
        aria-label="Conversation"
        aria-live="off"
      >
        <div ref={content}>
          {store.hasEarlier.value && (
            <button type="button" class="earlier" onClick={() => void store.loadEarlier()}>
              ▸ Earlier messages
            </button>
          )}
          {chunks.map((chunk, at) => (
            <ChunkView
              key={chunk.key}
              chunk={chunk}
              starts={starts}
              agent={agent}
              scroller={scroller}
              before={chunks[at - 1]}
            />
          ))}
        </div>
      </div>
      <OnTheWay store={store} />
      {end.isBelow.value && (
        <button type="button" class="below" onClick={end.go}>
          New below ↓
        </button>
      )}
    </div>
  );
}

/** The end of the transcript: the view stays there while it grows, until somebody scrolls up. */
function useEnd(scroller: RefObject<HTMLDivElement | null>, content: RefObject<HTMLDivElement | null>) {
  const isPinned = useRef(true);
  const lastTop = useRef(0);
  const isBelow = useSignal(false);
  const go = () => {
    const view = scroller.current;
    if (view) view.scrollTop = view.scrollHeight;
    isBelow.value = false;
  };
  const scrolled = () => {
    const view = scroller.current;
    if (!view) return;
    // Only who scrolls up leaves the end: it may have moved on since we went there.
    if (view.scrollHeight - view.scrollTop - view.clientHeight < PINNED_PX) isPinned.current = true;
    else if (view.scrollTop < lastTop.current) isPinned.current = false;
    lastTop.current = view.scrollTop;
    if (isPinned.current) isBelow.value = false;
  };
  const grew = () => {
    if (!isPinned.current) isBelow.value = true;
  };
  useEffect(() => {
    const observer = new ResizeObserver(() => isPinned.current && go());
    if (content.current) observer.observe(content.current);
    if (scroller.current) observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);
  const leave = () => (isPinned.current = false);
  return { isPinned, isBelow, go, scrolled, grew, leave };
}

/** When older messages come in above, what is being read stays where it is. */
function useKeepPlace(
  scroller: RefObject<HTMLDivElement | null>,
  firstKey: number | undefined,
  isPinned: RefObject<boolean>,
): void {
  const before = useRef({ key: firstKey, height: 0, top: 0 });
  useLayoutEffect(() => {
    const view = scroller.current;
    if (!view) return;
    const { key, height, top } = before.current;
    const isMoved = view.scrollTop !== top; // the browser has done it by itself, but at the very top it does not
    if (key !== undefined && key !== firstKey && !isPinned.current && !isMoved)
      view.scrollTop = top + view.scrollHeight - height;
    before.current = { key: firstKey, height: view.scrollHeight, top: view.scrollTop };
  });
}

/** Tells of messages that were added at the end, not of those that grow. */
function useNewMessages(store: SessionStore, tell: () => void): void {
  const newest = useComputed(() => {
    const last = store.transcript.chunks.value.at(-1)?.entries.value.at(-1);
    return last?.peek().seq ?? 0;
  });
  useSignalEffect(() => {
    if (newest.value > 0) tell();
  });
}

interface ChunkProperties {
  readonly chunk: Chunk;
  readonly starts: Starts;
  readonly agent: string;
  readonly scroller: RefObject<HTMLDivElement | null>;
  readonly before: Chunk | undefined;
}

/** Neighbours in the transcript. Far from the view only their height is kept, so that any number of them is smooth. */
function ChunkView({ chunk, starts, agent, scroller, before }: ChunkProperties) {
  const place = useRef<HTMLDivElement>(null);
  const isNear = useSignal(!chunk.isFar);
  const height = useRef(chunk.isFar ? chunk.entries.peek().length * ENTRY_PX : 0);
  useEffect(() => {
    const element = place.current;
    if (!element || typeof IntersectionObserver === "undefined") return;
    const observer = new IntersectionObserver(
      ([seen]) => {
        if (!seen) return;
        if (!seen.isIntersecting) height.current = seen.boundingClientRect.height;
        isNear.value = seen.isIntersecting;
      },
      { root: scroller.current, rootMargin: `${DRAW_PX}px 0px` },
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const entries = chunk.entries.value;
  let author = before?.entries.peek().at(-1)?.peek().author_type;
  return (
    <div
      ref={place}
      data-first={entries[0]?.peek().seq}
      style={isNear.value ? { height: "" } : { height: `${height.current}px` }}
    >
      {isNear.value &&
        entries.map((entry) => {
          const { id, seq, author_type } = entry.peek();
          const start = starts.byPlace.value.get(seq);
          const goesOn = author_type === author && author_type !== "user";
          author = author_type;
          return (
            <Fragment key={id}>
              <MessageView entry={entry} agent={agent} goesOn={goesOn} />
              {start && <StartLine start={start} />}
            </Fragment>
          );
        })}
    </div>
  );
}

/** How far a way back through a long transcript is; a page or two come at once, without a word. */
function OnTheWay({ store }: { store: SessionStore }) {
  const count = store.onTheWay.value;
  if (count < WORTH_A_WORD) return null;
  return (
    <p class="on-the-way" role="status">
      Going back: {count.toLocaleString()} messages so far
    </p>
  );
}
