"""The way in: WebSocket actions and events, HTTP, and who may use them."""
