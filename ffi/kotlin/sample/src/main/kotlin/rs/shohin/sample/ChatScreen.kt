package rs.shohin.sample

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Box
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.layout.safeDrawingPadding
import androidx.compose.foundation.lazy.LazyColumn
import androidx.compose.foundation.lazy.items
import androidx.compose.foundation.lazy.rememberLazyListState
import androidx.compose.material3.Button
import androidx.compose.material3.Card
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.OutlinedTextField
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.unit.dp

@Composable
fun ChatScreen(screen: Screen, onSend: (String) -> Unit, onStop: () -> Unit) {
    val list = rememberLazyListState()
    // Follows the reply as it grows.
    LaunchedEffect(screen.messages) {
        if (screen.messages.isNotEmpty()) list.scrollToItem(screen.messages.lastIndex, Int.MAX_VALUE)
    }
    Column(Modifier.fillMaxSize().safeDrawingPadding().padding(12.dp)) {
        LazyColumn(Modifier.weight(1f), list, verticalArrangement = Arrangement.spacedBy(8.dp)) {
            items(screen.messages) { Bubble(it) }
        }
        screen.problem?.let { Text(it, color = MaterialTheme.colorScheme.error) }
        Composer(screen, onSend, onStop)
    }
}

@Composable
private fun Bubble(message: Message) {
    val side = if (message.fromUser) Alignment.CenterEnd else Alignment.CenterStart
    Box(Modifier.fillMaxWidth(), contentAlignment = side) {
        Card { Text(message.text.ifEmpty { "…" }, Modifier.padding(12.dp)) }
    }
}

@Composable
private fun Composer(screen: Screen, onSend: (String) -> Unit, onStop: () -> Unit) {
    var text by rememberSaveable { mutableStateOf("") }
    Row(Modifier.fillMaxWidth(), Arrangement.spacedBy(8.dp), Alignment.CenterVertically) {
        val hint = if (screen.ready) "Message" else "Loading the model"
        OutlinedTextField(text, { text = it }, Modifier.weight(1f), label = { Text(hint) })
        if (screen.answering) {
            Button(onStop) { Text("Stop") }
        } else {
            Button(
                onClick = {
                    onSend(text)
                    text = ""
                },
                enabled = screen.ready && text.isNotBlank(),
            ) { Text("Send") }
        }
    }
}
