// Lines from the server, taken a few at a time: after a stall a frame holds thousands, and a person may be typing.

const AT_ONCE = 100;

export class Inbox {
  private lines: string[] = [];
  private isWaiting = false;
  private readonly channel = new MessageChannel(); // unlike a timer it is not slowed down in a tab that nobody looks at

  constructor(private readonly take: (lines: readonly string[]) => void) {
    this.channel.port1.onmessage = () => {
      this.isWaiting = false;
      this.read();
    };
  }

  /** Take these lines after all that came before: at once as far as that is quick. */
  add(lines: readonly string[]): void {
    for (const line of lines) this.lines.push(line);
    if (!this.isWaiting) this.read();
  }

  /** Forget what was not taken yet. */
  clear(): void {
    this.lines = [];
  }

  private read(): void {
    const some = this.lines.splice(0, AT_ONCE);
    if (some.length > 0) this.take(some);
    if (this.lines.length === 0) return;
    this.isWaiting = true;
    this.channel.port2.postMessage(null);
  }
}
