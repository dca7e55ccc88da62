"""Runs as folders that CTranslate2 reads, a C++ library that continues texts and translates."""
