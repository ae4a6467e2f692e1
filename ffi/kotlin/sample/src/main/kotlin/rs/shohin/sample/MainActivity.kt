package rs.shohin.sample

import android.os.Bundle
import androidx.activity.ComponentActivity
import androidx.activity.compose.setContent
import androidx.compose.material3.MaterialTheme
import androidx.lifecycle.ViewModel
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import androidx.lifecycle.viewModelScope
import androidx.lifecycle.viewmodel.compose.viewModel
import rs.shohin.Model

/** Keeps the model and the conversation while the screen is turned. */
class ChatViewModel : ViewModel() {
    // Your own model: Model.load(File(context.filesDir, "model.gguf").path)
    val state = ChatState(viewModelScope) { Model.builtIn().let { it to it.chat() } }

    init {
        state.load()
    }

    override fun onCleared() {
        state.close()
    }
}

class MainActivity : ComponentActivity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContent {
            MaterialTheme {
                val state = viewModel<ChatViewModel>().state
                val screen = state.screen.collectAsStateWithLifecycle()
                ChatScreen(screen.value, onSend = state::send, onStop = state::stop)
            }
        }
    }
}
