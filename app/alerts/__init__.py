"""When is whom told, and in which words?"""
