// What must outlast the tab, in IndexedDB, by run: the device (key, place, the gateway's key, plan), answers, the model, rows.
// An answer is there before it leaves, so the same order gets the same bytes after a reload.
const NAME = 'fedzero', STORES = ['devices', 'answers', 'models', 'rows'];
const KEPT_BYTES = 4 << 20, KEPT = 5000;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

export class Store {
  static async open() {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => {
      for (const each of STORES) opening.result.createObjectStore(each);
    };
    const store = new Store();
    store.db = await done(opening);
    store.db.onversionchange = () => store.db.close();
    return store;
  }

  get(name, key) {
    return done(this.db.transaction(name).objectStore(name).get(key));
  }

  // Written when the promise is fulfilled; `before` may look at what is there.
  change(name, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.db.transaction(name, 'readwrite', { durability: 'strict' });
      transaction.oncomplete = resolve;
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error('the browser does not store'));
      work(transaction.objectStore(name));
    });
  }

  put = (name, key, value) => this.change(name, (store) => store.put(value, key));
  remove = (name, key) => this.change(name, (store) => store.delete(key));

  // Answers of a run by round, oldest first.
  answers = (run) => done(this.db.transaction('answers').objectStore('answers').getAll(between(run, 0, Infinity)));

  answer = (run, numbers) => this.get('answers', [run, ...numbers]);

  // Keep an answer, and forget those of long ago.
  keep(run, numbers, answer) {
    const most = Math.max(64, Math.min(KEPT, Math.floor(KEPT_BYTES / (answer.body.length + 200))));
    return this.change('answers', (store) => {
      store.add(answer, [run, ...numbers]);
      if (numbers[0] > most) store.delete(between(run, 0, numbers[0] - most));
    });
  }
}

const between = (run, from, to) => IDBKeyRange.bound([run, from], [run, to], false, true);
