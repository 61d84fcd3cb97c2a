"""The names of the tokenisers that a config may choose."""

# name -> NLTK's class; see tasks/data/tokenisers.py
TOKENISERS: dict[str, str] = {
    "treebank": "NLTKWordTokenizer",
    "wordpunct": "WordPunctTokenizer",
    "toktok": "ToktokTokenizer",
    "tweet": "TweetTokenizer",
}
