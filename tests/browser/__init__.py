"""The page in a real browser, before a real backend that the tests kill."""
