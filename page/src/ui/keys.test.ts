// @vitest-environment happy-dom

import { beforeEach, expect, test, vi } from "vitest";
import { startKeys } from "./keys";

const help = vi.fn();
startKeys({ newTask: () => undefined, help });

beforeEach(() => {
  help.mockClear();
  document.body.innerHTML = "";
});

function pressIn(html: string): void {
  document.body.innerHTML = html;
  const target = document.querySelector("textarea") ?? document.body;
  target.dispatchEvent(new KeyboardEvent("keydown", { key: "?", bubbles: true, cancelable: true }));
}

test("a letter is a command, and text where somebody types", () => {
  pressIn("");
  expect(help).toHaveBeenCalledTimes(1);
  pressIn("<textarea></textarea>");
  pressIn("<dialog open><textarea></textarea></dialog>");
  expect(help).toHaveBeenCalledTimes(1);
});

test("the field of a dialog that has just closed takes no letters any more", () => {
  pressIn("<dialog><textarea></textarea></dialog>");
  expect(help).toHaveBeenCalledTimes(1);
});
