/* A page from file:// may start no worker. Here the search's worker runs in a hidden frame, which has the page's own origin. */
"use strict";
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...urls) => {
        for (const one of urls) await this.load(one);
      };
      this.ready = this.load(url);
    }

    /* Resolves once a script has run in the frame. */
    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }
  /* The search looks for this name to find its own folder. */
  window.IFrameWorker = window.Worker = IFrameWorker;
}
