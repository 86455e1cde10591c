"""Streamlit: a chat, driven by AppTest."""

from streamlit.testing.v1 import AppTest


def app():
    import streamlit as st
    from openai import OpenAI

    st.title("Depths")
    if "messages" not in st.session_state:
        st.session_state.messages = []
    for message in st.session_state.messages:
        with st.chat_message(message["role"]):
            st.markdown(message["content"])
    if text := st.chat_input("Ask"):
        st.session_state.messages.append({"role": "user", "content": text})
        with st.chat_message("assistant"):
            stream = OpenAI().chat.completions.create(model="gpt-4o", messages=st.session_state.messages, stream=True)
            said = st.write_stream(stream)
        st.session_state.messages.append({"role": "assistant", "content": said})


page = AppTest.from_function(app, default_timeout=60).run()
for text in ("How deep is the fjord?", "And the sea?"):
    page.chat_input[0].set_value(text).run()
    print([message.markdown[0].value for message in page.chat_message], page.exception)
