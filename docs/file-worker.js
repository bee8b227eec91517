// Web workers for pages that are opened from the file system, where browsers refuse them: the search of the site needs one. The script of
// the worker runs in a hidden frame instead. The theme looks for the name IFrameWorker in the parent of the frame.
'use strict';

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement('iframe');
    frame.hidden = true;
    document.body.append(frame);
    const scope = frame.contentWindow;
    const load = (address) => new Promise((resolve, reject) => {
      const script = scope.document.createElement('script');
      script.src = address;
      script.onload = resolve;
      script.onerror = reject;
      scope.document.head.append(script);
    });
    scope.postMessage = (data) => this.dispatchEvent(new MessageEvent('message', {data}));
    scope.importScripts = async (...addresses) => {
      for (const address of addresses) await load(address);
    };
    this.loaded = load(new URL(url, location.href).href).then(() => scope);
  }

  postMessage(data) {
    this.loaded.then((scope) => scope.dispatchEvent(new MessageEvent('message', {data})));
  }
}

if (location.protocol === 'file:') {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
