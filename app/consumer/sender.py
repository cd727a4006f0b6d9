import threading
class Sender(threading.Thread):
    def __init__(self, store, settings, stop): super().__init__(daemon=True)
    def run(self): pass
