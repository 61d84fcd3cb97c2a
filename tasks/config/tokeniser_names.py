"""The names of the tokenisers that a config may choose."""

# name -> NLTK's class; see tasks/data/tokenisers.py
NLTK_TOKENISERS: dict[str, str] = {
    "treebank": "NLTKWordTokenizer",
    "wordpunct": "WordPunctTokenizer",
    "toktok": "ToktokTokenizer",
    "tweet": "TweetTokenizer",
}
# name -> how its tokens are joined: see models/vocabulary.py
TOKENISERS: dict[str, str] = {
    **dict.fromkeys(NLTK_TOKENISERS, "spaces"),
    "unicode": "script",
    "characters": "nothing",
    "whitespace": "spaces",
}
