// @vitest-environment happy-dom
import { render } from "preact";
import { act } from "preact/test-utils";
import { describe, expect, test } from "vitest";
import type { Action, Answer, Notification, Status } from "../../../wire/answers";
import { ConnectionLost, Refused } from "../../../wire/failures";
import type { Requests } from "../../../wire/types";
import {
  type Backend,
  SessionResumption,
  type SessionResumptionView,
  useSessionResumption,
} from "./use-session-resumption";

const WAITING: Partial<Status> = {
  state: "WAITING_FOR_INPUT",
  is_agent_running: false,
  is_resumable: true,
  needs_resume: true,
  stage: "",
  resume_reason: "agent_not_running",
};
const RUNNING: Partial<Status> = {
  ...WAITING,
  is_agent_running: true,
  needs_resume: false,
  resume_reason: "already_running",
};

/** A backend whose answers a test gives when it wants, as many tabs as it likes. */
class FakeBackend implements Backend {
  readonly asked: {
    action: string;
    payload: unknown;
    answer: (value: unknown) => Promise<void>;
    refuse: (error: Error) => Promise<void>;
  }[] = [];
  private readonly listeners = new Set<(notification: Notification) => void>();
  private readonly opened = new Set<(bootId: string) => void>();
  private boot = "";

  request<A extends Action>(action: A, payload: Requests[A]): Promise<Answer<A>> {
    return new Promise((resolve, reject) => {
      const after = () => new Promise<void>((done) => setTimeout(done));
      this.asked.push({
        action,
        payload,
        answer: (value) => (resolve(value as Answer<A>), after()),
        refuse: (error) => (reject(error), after()),
      });
    });
  }

  listen(listener: (notification: Notification) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  whenOpen(listener: (bootId: string) => void): () => void {
    this.opened.add(listener);
    if (this.boot) listener(this.boot);
    return () => this.opened.delete(listener);
  }

  stand(boot: string): void {
    this.boot = boot;
    for (const listener of this.opened) listener(boot);
  }

  tell(action: string, payload: object, session_id = "s"): void {
    const notification = { action, payload: { task_id: "t", session_id, ...payload } } as unknown as Notification;
    for (const listener of this.listeners) listener(notification);
  }

  actions(): string[] {
    return this.asked.map((one) => one.action.replace("task.session.", ""));
  }

  last() {
    return this.asked.at(-1)!;
  }
}

function opened(options: { isAutomatic?: boolean } = {}): {
  backend: FakeBackend;
  tab: SessionResumption;
  close: () => void;
} {
  const backend = new FakeBackend();
  const tab = new SessionResumption(backend, "t", "s", { isAutomatic: () => options.isAutomatic ?? true });
  const close = tab.open();
  backend.stand("boot1");
  return { backend, tab, close };
}

async function resumed() {
  const it = opened();
  await it.backend.last().answer(WAITING);
  await it.backend.last().answer({ success: true, already_running: false });
  it.backend.tell("session.resume.completed", { how: "native", stages: {} });
  return it;
}

describe("what a status leads to", () => {
  test.each([
    ["an agent that runs", RUNNING, true, "running", false],
    ["a session that needs a resume", WAITING, true, "resuming", true],
    ["the same, resumed by hand only", WAITING, false, "idle", false],
    ["one that needs a resume and cannot have it", { ...WAITING, is_resumable: false }, true, "idle", false],
    [
      "one that was seen a moment ago",
      { ...WAITING, needs_resume: false, resume_reason: "stale_execution" },
      true,
      "idle",
      false,
    ],
    ["a parked one", { ...WAITING, needs_resume: false, resume_reason: "parked" }, true, "idle", false],
    ["one that ended", { ...WAITING, state: "FAILED", is_resumable: false, needs_resume: false }, true, "idle", false],
    ["a start under way", { ...WAITING, needs_resume: false, stage: "restoring" }, true, "resuming", false],
  ])("%s", async (_, status, isAutomatic, state, asksForResume) => {
    const { backend, tab, close } = opened({ isAutomatic });
    expect(tab.state.value).toBe("checking");
    await backend.last().answer(status);
    expect(tab.state.value).toBe(state);
    expect(backend.actions()).toEqual(asksForResume ? ["status", "resume"] : ["status"]);
    expect(tab.hasAttemptedResume).toBe(asksForResume);
    close();
  });
});

test("nothing is asked before the connection stands", () => {
  const backend = new FakeBackend();
  const tab = new SessionResumption(backend, "t", "s", { isAutomatic: () => true });
  tab.open();
  expect([tab.state.value, backend.asked.length]).toEqual(["idle", 0]);
});

test("stages are shown on the way, and a good end is resumed", async () => {
  const { backend, tab } = opened();
  await backend.last().answer(WAITING);
  backend.tell("session.resume.progress", { stage: "restoring", elapsed_ms: 5 });
  expect([tab.state.value, tab.stage.value]).toEqual(["resuming", "restoring"]);
  backend.tell("session.resume.completed", { how: "native", stages: {} });
  await backend.last().answer({ success: true, already_running: false });
  expect([tab.state.value, tab.stage.value]).toEqual(["resumed", ""]);
});

test("an agent that somebody else started meanwhile runs", async () => {
  const { backend, tab } = opened();
  await backend.last().answer(WAITING);
  await backend.last().answer({ success: true, already_running: true });
  expect(tab.state.value).toBe("running");
});

describe("failures", () => {
  test("a start that failed is an error, and is not tried again by itself in the same boot", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    backend.tell("session.resume.failed", {
      code: "CONFLICT",
      reason: "login_required",
      cause: "login_required",
      message: "Log in.",
    });
    expect([tab.state.value, tab.failure.value?.reason]).toEqual(["error", "login_required"]);
    backend.stand("boot1");
    await backend.last().answer(WAITING);
    expect(backend.actions()).toEqual(["status", "resume", "status"]);
    expect(tab.state.value).toBe("error");
  });

  test("a refused resume is an error with the server's words", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    await backend
      .last()
      .refuse(
        new Refused({ code: "CONFLICT", message: "The folder is gone.", details: { reason: "workspace_missing" } }),
      );
    expect(tab.failure.value).toEqual({
      code: "CONFLICT",
      reason: "workspace_missing",
      message: "The folder is gone.",
    });
  });

  test("a start that a person cancelled is no error", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    backend.tell("session.resume.failed", { code: "CONFLICT", reason: "cancelled", cause: "cancelled", message: "" });
    expect(tab.state.value).toBe("idle");
  });

  test("a person tries again, and opens the queue", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    backend.tell("session.resume.failed", { code: "UNAVAILABLE", reason: "inactive", cause: "inactive", message: "" });
    void tab.resume();
    expect([tab.state.value, tab.failure.value]).toEqual(["resuming", undefined]);
    expect(backend.last().payload).toEqual({ task_id: "t", session_id: "s", open_queue: true });
  });

  test("a session that is not there is an error", async () => {
    const { backend, tab } = opened();
    await backend.last().refuse(new Refused({ code: "NOT_FOUND", message: "There is no session s." }));
    expect([tab.state.value, tab.failure.value?.code]).toEqual(["error", "NOT_FOUND"]);
  });
});

describe("the connection drops and returns", () => {
  test("UI-1 a page left open across a restart comes back by itself", async () => {
    const { backend, tab } = await resumed();
    backend.stand("boot2");
    await backend.last().answer(WAITING);
    expect(backend.actions()).toEqual(["status", "resume", "status", "resume"]);
    expect(tab.state.value).toBe("resuming");
    backend.tell("session.resume.completed", { how: "native", stages: {} });
    expect(tab.state.value).toBe("resumed");
  });

  test("within one boot a session that runs on stays resumed, and nothing is asked twice", async () => {
    const { backend, tab } = await resumed();
    backend.stand("boot1");
    await backend.last().answer(RUNNING);
    expect([tab.state.value, backend.actions().filter((one) => one === "resume").length]).toEqual(["resumed", 1]);
  });

  test("a resume whose answer was lost is asked for again: nobody knows whether it arrived", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    await backend.last().refuse(new ConnectionLost());
    expect([tab.state.value, tab.hasAttemptedResume]).toEqual(["resuming", false]);
    backend.stand("boot1");
    await backend.last().answer(WAITING);
    expect(backend.actions()).toEqual(["status", "resume", "status", "resume"]);
  });

  test("a start that ended while the connection was away is resumed", async () => {
    const { backend, tab } = opened();
    await backend.last().answer(WAITING);
    await backend.last().refuse(new ConnectionLost());
    backend.stand("boot1");
    await backend.last().answer(RUNNING);
    expect(tab.state.value).toBe("resumed");
  });

  test("a check whose connection was lost waits for the next one", async () => {
    const { backend, tab } = opened();
    await backend.last().refuse(new ConnectionLost());
    expect(tab.state.value).toBe("checking");
    backend.stand("boot1");
    await backend.last().answer(RUNNING);
    expect(tab.state.value).toBe("running");
  });
});

describe("UI-2 stale answers", () => {
  test("an answer that a notification overtook decides nothing, and is asked for again", async () => {
    const { backend, tab } = opened();
    const [first] = backend.asked;
    backend.tell("session.agent_changed", { is_agent_running: true });
    await first!.answer(WAITING);
    expect(backend.actions()).toEqual(["status", "status"]);
    await backend.last().answer(RUNNING);
    expect(tab.state.value).toBe("running");
  });

  test("a completed start is not undone by the status of before", async () => {
    const { backend, tab } = opened();
    const [first] = backend.asked;
    backend.tell("session.resume.completed", { how: "native", stages: {} });
    await first!.answer(WAITING);
    expect([tab.state.value, backend.actions()]).toEqual(["resumed", ["status"]]);
  });

  test("of two questions only the later one's answer counts, in whatever order they come", async () => {
    const { backend, tab } = opened();
    backend.stand("boot2");
    const [first, second] = backend.asked;
    await second!.answer(RUNNING);
    await first!.answer(WAITING);
    expect([tab.state.value, backend.actions()]).toEqual(["running", ["status", "status"]]);
    const other = opened();
    other.backend.stand("boot2");
    await other.backend.asked[0]!.answer(WAITING);
    await other.backend.asked[1]!.answer(RUNNING);
    expect([other.tab.state.value, other.backend.actions()]).toEqual(["running", ["status", "status"]]);
  });

  test("nothing moves after the page was left", async () => {
    const { backend, tab, close } = opened();
    close();
    await backend.last().answer(WAITING);
    backend.tell("session.resume.completed", { how: "native", stages: {} });
    expect([tab.state.value, backend.actions()]).toEqual(["checking", ["status"]]);
  });

  test("another session's news are none of ours", () => {
    const { backend, tab } = opened();
    backend.tell("session.resume.completed", { how: "native", stages: {} }, "other");
    expect(tab.state.value).toBe("checking");
  });
});

test("UI-1 two tabs end in the same state, whoever asked", async () => {
  const backend = new FakeBackend();
  const tabs = [1, 2].map(() => new SessionResumption(backend, "t", "s", { isAutomatic: () => true }));
  for (const tab of tabs) tab.open();
  backend.stand("boot1");
  await backend.asked[0]!.answer(WAITING);
  backend.tell("session.resume.progress", { stage: "launching", elapsed_ms: 1 });
  await backend.asked[1]!.answer(WAITING);
  expect(tabs.map((tab) => tab.state.value)).toEqual(["resuming", "resuming"]);
  expect(backend.actions().filter((one) => one === "resume")).toHaveLength(1);
  backend.tell("session.resume.completed", { how: "native", stages: {} });
  expect(tabs.map((tab) => tab.state.value)).toEqual(["resumed", "resumed"]);
});

test("UI-1 a tab that asked when the other's start was just done ends as resumed too", async () => {
  const { backend, tab } = opened();
  await backend.last().answer(WAITING);
  backend.tell("session.resume.completed", { how: "native", stages: {} });
  await backend.last().answer({ success: true, already_running: true });
  expect(tab.state.value).toBe("resumed");
});

test("an agent that ends while the page is open is left alone: the next message wakes it", async () => {
  const { backend, tab } = await resumed();
  backend.tell("session.agent_changed", { is_agent_running: false });
  expect([tab.state.value, backend.actions()]).toEqual(["idle", ["status", "resume"]]);
});

test("the hook opens with its component, begins anew for another session, and ends", async () => {
  const backend = new FakeBackend();
  const seen: SessionResumptionView[] = [];
  const options = { isAutomatic: () => true };
  const Page = ({ id }: { id: string }) => {
    seen.push(useSessionResumption(backend, "t", id, options));
    return null;
  };
  const place = document.createElement("div");
  backend.stand("boot1");
  await act(() => render(<Page id="s" />, place));
  await act(() => render(<Page id="s" />, place));
  expect(backend.actions()).toEqual(["status"]);
  await act(() => render(<Page id="other" />, place));
  expect(backend.asked.map((one) => (one.payload as { session_id: string }).session_id)).toEqual(["s", "other"]);
  await act(() => render(null, place));
  await backend.last().answer(WAITING);
  expect(backend.actions()).toEqual(["status", "status"]);
});
