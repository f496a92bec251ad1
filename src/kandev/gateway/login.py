"""The page that asks a browser for the token. It holds no script, and nothing of the server."""

import base64
import hashlib

from starlette.responses import HTMLResponse, Response

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto 0; padding: 0 1rem; }
h1 { font-size: 1.1rem; }
input { font: inherit; padding: .4rem .6rem; width: 100%; box-sizing: border-box; }
button { font: inherit; padding: .4rem 1rem; margin-top: .6rem; }
"""

_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kandev</title>
<style>{_STYLE}</style>
<main>
<h1>This server asks for its token</h1>
<p><code>kandev open</code> brings it along. It also stands in the file <code>token</code> of the server's home
(<code>~/.kandev/token</code>).</p>
<form method="get">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Open</button>
</form>
</main>
</html>
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def login_page() -> Response:
    """Return the form, as 401. What is entered comes back as `?token=`, which the guard swaps for a cookie."""
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-store"}
    return HTMLResponse(_PAGE, status_code=401, headers=headers)
