// The search looks for each word of a question as the beginning of a word: "a" finds all titles with a word in a.
// So words without meaning are removed from the question before it is searched for.

const EMPTY = new Set(
  ("a an and any are at be by can do does for from get has have how i if in into is it its my of on one or our " +
   "set should so than that the their them they this to use what when where which while who why will with you your")
    .split(" "));
const QUERY = 2;  // the search's message with a question

const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === QUERY && typeof message.data === "string") {
    const words = message.data.split(/\s+/).filter((word) => !EMPTY.has(word.toLowerCase()));
    if (words.some(Boolean)) message = { ...message, data: words.join(" ") };
  }
  return post.call(this, message, ...rest);
};
