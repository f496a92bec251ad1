import { defineConfig } from "vitest/config";

// `npm run dev` shows the page from its sources; KANDEV_URL is the backend that it talks to (kandev serve --no-auth).
const backend = process.env["KANDEV_URL"] ?? "http://127.0.0.1:38430";

export default defineConfig({
  build: {
    outDir: "../src/kandev/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy wants files
    modulePreload: { polyfill: false },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "/ws": { target: backend, ws: true }, "/api": backend, "/healthz": backend },
  },
  test: { include: ["src/**/*.test.{ts,tsx}"] },
});
