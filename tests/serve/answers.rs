//! What is answered, and that it does not depend on who else is there.

use crate::support::{Server, ask, completion, config, data, service, until};
use loadmaster::serve::{Config, Limits};
use serde_json::{Value, json};
use std::io::Read;

const PROMPTS: [&str; 6] = [
    "Alice was beginning to get very tired of",
    "The Queen",
    "`Curiouser and curiouser!' cried Alice; she was so much surprised, that for the moment she quite forgot how to",
    "Down, down, down. Would the fall never come to an end?",
    "A",
    "The Hatter opened his eyes very wide on hearing this; but all he said was",
];

fn text(answer: &str) -> Value {
    let value: Value = serde_json::from_str(answer).unwrap();
    json!({ "choices": value["choices"], "usage": value["usage"] })
}

#[test]
fn thirty_two_clients_get_the_answers_of_a_single_one() {
    let state = service(Config { slots: 5, ..config() });
    let server = Server::start(&state);
    let asked: Vec<Value> =
        (0..32).map(|i| completion(PROMPTS[i % PROMPTS.len()], i as u64 / 2, 5 + i as u32 % 19)).collect();
    let alone: Vec<Value> = asked.iter().map(|body| text(&server.ask("POST", "/v1/completions", body).1)).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            asked.iter().map(|body| scope.spawn(|| text(&server.ask("POST", "/v1/completions", body).1))).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    for ((body, alone), together) in asked.iter().zip(&alone).zip(&together) {
        assert_eq!(alone, together, "{body}");
    }
    let texts: std::collections::BTreeSet<String> = alone.iter().map(|a| a["choices"][0]["text"].to_string()).collect();
    assert!(texts.len() > 20, "only {} different answers", texts.len());
}

#[test]
fn a_stream_has_the_text_of_the_whole_answer() {
    let state = service(config());
    let server = Server::start(&state);
    let mut body = completion(PROMPTS[0], 7, 24);
    body["n"] = json!(3);
    let whole: Value = serde_json::from_str(&server.ask("POST", "/v1/completions", &body).1).unwrap();
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let (status, events) = server.ask("POST", "/v1/completions", &body);
    assert_eq!(status, 200);
    let events = data(&events);
    assert_eq!(events.last(), Some(&"[DONE]"));
    let pieces: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    for index in 0..3 {
        let own = pieces.iter().flat_map(|p| p["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
        let said: String = own.map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(whole["choices"][index]["text"], said, "{index}");
    }
    assert_eq!(pieces.last().unwrap()["usage"], whole["usage"]);
    assert_eq!(whole["usage"]["completion_tokens"], 72);
}

/// Text that could begin a stop string is held back while its tokens are told: their places are those of the whole answer.
#[test]
fn a_stream_tells_where_tokens_stand_as_the_whole_answer_does() {
    let state = service(config());
    let mut body = json!({ "prompt": PROMPTS[0], "max_tokens": 30, "temperature": 0, "logprobs": 0 });
    let (_, plain) = ask(&state, "POST", "/v1/completions", &body.to_string());
    let text = plain["choices"][0]["text"].as_str().unwrap();
    let begin: String = text.chars().skip(3).take(9).collect();
    body["stop"] = json!([format!("{begin}\u{1}")]);
    let (_, whole) = ask(&state, "POST", "/v1/completions", &body.to_string());
    body["stream"] = json!(true);
    let (.., events) = crate::support::whole(
        &state,
        "POST",
        "/v1/completions",
        &body.to_string(),
        &[("content-type", "application/json")],
    );
    let pieces: Vec<Value> = data(&events).iter().filter_map(|e| serde_json::from_str(e).ok()).collect();
    let told: Vec<Value> = pieces
        .iter()
        .filter_map(|p| p["choices"][0]["logprobs"]["text_offset"].as_array())
        .flat_map(|offsets| offsets.iter().cloned())
        .collect();
    assert!(
        pieces.iter().any(|p| p["choices"][0]["text"] == "" && !p["choices"][0]["logprobs"].is_null()),
        "held back"
    );
    assert_eq!(json!(told), whole["choices"][0]["logprobs"]["text_offset"]);
}

#[test]
fn a_conversation_is_answered_by_the_models_template() {
    let state = service(config());
    let messages = json!([{ "role": "user", "content": [{ "type": "text", "text": PROMPTS[1] }] }]);
    let body = json!({ "model": "alice", "messages": messages, "max_tokens": 9, "temperature": 0, "logprobs": true, "top_logprobs": 2 });
    let (status, chat) = ask(&state, "POST", "/v1/chat/completions", &body.to_string());
    assert_eq!(status, 200, "{chat}");
    let same = json!({ "prompt": format!("{}\n", PROMPTS[1]), "max_tokens": 9, "temperature": 0 });
    let (_, completion) = ask(&state, "POST", "/v1/completions", &same.to_string());
    assert_eq!(chat["choices"][0]["message"]["content"], completion["choices"][0]["text"]);
    let told = chat["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(told.len(), 9);
    assert!(told.iter().all(|t| t["token"] == t["top_logprobs"][0]["token"] && t["logprob"].as_f64().unwrap() < 0.0));
}

#[test]
fn an_answer_ends_before_its_stop_string() {
    let state = service(config());
    let body = json!({ "prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0 });
    let (_, all) = ask(&state, "POST", "/v1/completions", &body.to_string());
    let text = all["choices"][0]["text"].as_str().unwrap().to_owned();
    for stop in [&text[9..13], &text[2..3], &text[15..25]] {
        let body = json!({ "prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0, "stop": ["@@@", stop] });
        let (_, cut) = ask(&state, "POST", "/v1/completions", &body.to_string());
        assert_eq!(cut["choices"][0]["text"], text[..text.find(stop).unwrap()], "{stop:?}");
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn tokens_are_a_prompt_too_and_a_full_context_ends_the_answer() {
    let state = service(config());
    let body = json!({ "prompt": [[1, 2, 3], [4, 5, 6, 7]], "max_tokens": 500, "temperature": 0 });
    let (status, answer) = ask(&state, "POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let room = u64::from(state.model(None).unwrap().room);
    for choice in answer["choices"].as_array().unwrap() {
        assert!(choice["finish_reason"] == "length" || choice["finish_reason"] == "stop");
    }
    assert!(answer["usage"]["total_tokens"].as_u64().unwrap() <= 2 * (room + 1));
}

#[test]
fn a_client_that_goes_away_frees_its_slot() {
    let limits = Limits { answer_tokens: 1 << 14, ..Limits::default() };
    let state = service(Config { slots: 1, limits, ..config() });
    let server = Server::start(&state);
    crate::support::sim(&state, 0).faults().stall();
    let body = json!({ "prompt": PROMPTS[0], "max_tokens": 100, "temperature": 0, "stream": true });
    let mut stream = server.send("POST", "/v1/completions", &body.to_string());
    let mut first = [0; 16];
    stream.read_exact(&mut first).unwrap();
    until("it runs", || state.model(None).unwrap().mailbox.depth() == (0, 1));
    drop(stream);
    let waiting = json!({ "prompt": PROMPTS[1], "max_tokens": 2, "temperature": 0 });
    let mut other = server.send("POST", "/v1/completions", &waiting.to_string());
    until("the other waits", || state.model(None).unwrap().mailbox.depth().0 == 1);
    crate::support::sim(&state, 0).faults().release();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("nothing runs", || state.model(None).unwrap().mailbox.depth() == (0, 0));
    assert!(state.core.stats.tokens() < 100, "{} tokens were made for nobody", state.core.stats.tokens());
}
