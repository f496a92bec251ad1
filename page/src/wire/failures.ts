// Why a request has no answer.

/** The server's own refusal: `code` and `reason` are stable, the message is a sentence for a person. */
export class Refused extends Error {
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(payload: { code: string; message: string; details?: Record<string, unknown> | null }) {
    super(payload.message);
    this.name = "Refused";
    this.code = payload.code;
    this.details = payload.details ?? {};
  }

  get reason(): string {
    return typeof this.details["reason"] === "string" ? this.details["reason"] : "";
  }
}

/** The connection went away, or was not there: whether the server got the request is not known. */
export class ConnectionLost extends Error {
  constructor() {
    super("The connection to the server was lost.");
    this.name = "ConnectionLost";
  }
}

/** What to tell a person of any error. */
export function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : "Something went wrong.";
}
