"""Exit 0 when the server in this container answers /ready with 200 (HEALTHCHECK of the images)."""

import os
import sys
import urllib.request

url = f"http://127.0.0.1:{os.environ.get('ENGRAM_SERVER_PORT', '8000')}/ready"
try:
    with urllib.request.urlopen(url, timeout=4) as answer:
        sys.exit(answer.status != 200)
except OSError as error:  # not listening yet, or 503 while loading and draining
    sys.exit(f"not ready: {error}")
